package admin

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvrelay/kvrelay/relay"
)

// Metric describes one metric, for the documentation.
type Metric struct {
	Name, Type, Help string
	Labels           []Label
}

// Label is a label and the values it can have.
type Label struct {
	Name   string
	Values []string // closed list; nil: as Name says
}

// metric is a Metric and where its values come from: one of the functions is set.
type metric struct {
	Metric
	process func(*snapshot) float64
	source  func(*relay.SourceStatus) float64 // labels: rank
	rank    func(*relay.RankStatus) float64   // labels: rank
	several func(*snapshot, func(v float64, labels ...string))
}

const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

var rankLabel = Label{Name: "rank"}

// Metrics is every kvrelay_ metric, in the order of the documentation.
func Metrics() []Metric {
	var list []Metric
	for _, m := range metrics() {
		list = append(list, m.Metric)
	}
	return append(list, buildInfo)
}

// collector makes the metrics from a look at the relay at each scrape.
type collector struct {
	look    func(context.Context) snapshot
	build   build
	metrics []metric
	descs   []*prometheus.Desc
}

func newCollector(look func(context.Context) snapshot, b build) *collector {
	c := &collector{look: look, build: b, metrics: metrics()}
	for _, m := range c.metrics {
		var labels []string
		for _, l := range m.Labels {
			labels = append(labels, l.Name)
		}
		c.descs = append(c.descs, prometheus.NewDesc(m.Name, m.Help, labels, nil))
	}
	return c
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	snap := c.look(context.Background())
	for i, m := range c.metrics {
		if m.Type == histogram {
			collectLag(ch, c.descs[i], &snap)
			continue
		}
		typ := prometheus.GaugeValue
		if m.Type == counter {
			typ = prometheus.CounterValue
		}
		sums := newSums(m.Type)
		switch {
		case m.process != nil:
			sums.add(m.process(&snap))
		case m.several != nil:
			m.several(&snap, sums.add)
		default:
			m.perRank(&snap, sums)
		}
		for _, s := range sums.list {
			ch <- prometheus.MustNewConstMetric(c.descs[i], typ, s.value, s.labels...)
		}
	}
	b := prometheus.NewDesc(buildInfo.Name, buildInfo.Help, []string{"version", "commit", "goversion"}, nil)
	ch <- prometheus.MustNewConstMetric(b, prometheus.GaugeValue, 1, c.build.Version, c.build.Commit, c.build.Go)
}

func (m *metric) perRank(snap *snapshot, sums *sums) {
	for i := range snap.relay.Sources {
		src := &snap.relay.Sources[i]
		if m.source != nil {
			sums.add(m.source(src), rankText(src.Source.Rank))
			continue
		}
		for j := range src.Ranks {
			sums.add(m.rank(&src.Ranks[j]), rankText(src.Ranks[j].Rank))
		}
	}
}

func rankText(rank uint32) string { return strconv.FormatUint(uint64(rank), 10) }

// sums joins values of the same labels, which two sources that claim one rank
// have: counters are added, of gauges the highest counts.
type sums struct {
	counts bool
	list   []sum
	at     map[string]int
}

type sum struct {
	value  float64
	labels []string
}

func newSums(typ string) *sums { return &sums{counts: typ == counter, at: map[string]int{}} }

func (s *sums) add(v float64, labels ...string) {
	var key string
	for _, l := range labels {
		key += l + "\x00"
	}
	i, ok := s.at[key]
	switch {
	case !ok:
		s.at[key] = len(s.list)
		s.list = append(s.list, sum{v, labels})
	case s.counts:
		s.list[i].value += v
	default:
		s.list[i].value = max(s.list[i].value, v)
	}
}

// collectLag makes the lag histograms, one a rank.
func collectLag(ch chan<- prometheus.Metric, desc *prometheus.Desc, snap *snapshot) {
	lags := map[uint32]relay.Lag{}
	var order []uint32
	for i := range snap.relay.Sources {
		for j := range snap.relay.Sources[i].Ranks {
			r := &snap.relay.Sources[i].Ranks[j]
			sum, known := lags[r.Rank]
			if !known {
				order = append(order, r.Rank)
			}
			for k, n := range r.Lag.Counts {
				sum.Counts[k] += n
			}
			sum.Sum += r.Lag.Sum
			sum.N += r.Lag.N
			lags[r.Rank] = sum
		}
	}
	slices.Sort(order)
	for _, rank := range order {
		l := lags[rank]
		buckets := make(map[float64]uint64, len(relay.LagBounds))
		var below uint64
		for k, bound := range relay.LagBounds {
			below += l.Counts[k]
			buckets[bound] = below
		}
		ch <- prometheus.MustNewConstHistogram(desc, l.N, l.Sum, buckets, rankText(rank))
	}
}

// registry is the private registry of a Server.
func (s *Server) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(s.fresh, buildOf(s.o.Build)), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// maxScrapes at once; further ones are refused with 503.
const maxScrapes = 4

func (s *Server) metricsHandler() http.Handler {
	return promhttp.HandlerFor(s.registry(), promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}
