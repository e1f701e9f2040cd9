package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/capture"
)

const decodeHelp = `
Usage: kvrelay decode [flags] [FILE]

Shows what becomes of engine batches: for each one a JSON line

  {"id", "router_events": […], "drops": {reason: count}}

FILE is a capture (plain or gzip; kvrelay record makes one); an id is the batch's
sequence number. Without FILE, or with -, batches are read from stdin, a JSON
object a line:

  {"payload_hex", "id"?, "stream"?, "kv_block_size"?, "worker_id"?, "image_token_id"?, "video_token_id"?}

Lines of one stream come in order and share its state; what they say of block
size, worker and tokens counts when a rank of it is first seen. A line that
cannot be read is told on stderr with its number, and the rest goes on.

Exit codes: 0 everything was read, 1 something could not be read, 2 usage.

Flags:
  --duplicates auto|count|presence   how copies of a block are counted (default auto)
  --block-size N                     tokens per block where a line or FILE says nothing (default 0: learned)
  --worker-id N                      worker where a line or FILE says nothing (default 0)`

// runDecode shows what conversion makes of recorded batches.
func runDecode(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("decode", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	duplicates := fs.String("duplicates", "auto", "")
	d := &decoding{stderr: stderr, streams: map[string]*decodeStream{}}
	fs.Uint64Var(&d.config.BlockSize, "block-size", 0, "")
	fs.Uint64Var(&d.config.WorkerID, "worker-id", 0, "")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, decodeHelp[1:])
		return exitOK
	case err != nil:
		err = config.FlagProblem(fs, err)
	case fs.NArg() > 1:
		err = errors.New("one FILE at most")
	default:
		d.config.Duplicates, err = duplicatesOf(*duplicates)
	}
	if err != nil {
		fmt.Fprintf(stderr, "kvrelay decode: %v; `kvrelay decode -h` shows the usage\n", err)
		return exitUsage
	}
	d.out = bufio.NewWriter(stdout)
	if name := fs.Arg(0); name != "" && name != "-" {
		err = d.capture(name)
	} else {
		err = d.lines(stdin)
	}
	if err != nil {
		d.complain("%v", err)
	}
	d.flush()
	if d.broken != nil {
		return fail(stderr, "decode", fmt.Errorf("writing: %w", d.broken))
	}
	if d.bad {
		return exitFailed
	}
	return exitOK
}

func duplicatesOf(name string) (convert.Duplicates, error) {
	switch name {
	case "auto":
		return convert.Auto, nil
	case "count":
		return convert.Count, nil
	case "presence":
		return convert.Presence, nil
	}
	return 0, fmt.Errorf("--duplicates=%q: it is auto, count or presence", name)
}

// Bounds on what one run keeps, each some 50 KB: a line of a further stream, or
// of a further rank, is an error.
const (
	maxDecodeStreams = 4096
	maxDecodeRanks   = 64
)

// decoding is one run of the command.
type decoding struct {
	config  convert.Config
	streams map[string]*decodeStream
	out     *bufio.Writer
	stderr  io.Writer
	bad     bool

	batch  decode.Batch
	events convert.Output
	line   []byte
	shown  int   // router events on the line
	broken error // of writing: nothing more is read
}

// decodeStream is the state that the batches of one engine share.
type decodeStream struct {
	own   uint32 // rank of batches that name none
	ranks map[uint32]*decodeRank
}

type decodeRank struct {
	worker uint64
	number uint32
	conv   *convert.Rank
	id     uint64 // of the last router event
}

func (d *decoding) complain(format string, args ...any) {
	d.bad = true
	fmt.Fprintf(d.stderr, "kvrelay decode: "+format+"\n", args...)
}

// capture shows every message of a capture file. Numbers that go back are
// another incarnation of the engine, as to the relay.
func (d *decoding) capture(name string) error {
	r, err := capture.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // only read
	s := &decodeStream{own: r.Meta().DPRank, ranks: map[uint32]*decodeRank{}}
	var last uint64
	for n := 0; d.broken == nil; n++ {
		m, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		seq, ok := m.Seq()
		if !ok {
			seq = uint64(n) // engines that send none
		}
		d.begin(quoted(strconv.FormatUint(seq, 10)))
		if n > 0 && ok && seq <= last {
			d.restart(s)
		}
		last = seq
		if err := d.convert(s, d.config, m.Payload()); err != nil {
			d.complain("%s:%d: %v", name, r.Line(), err)
		}
	}
	return nil
}

// restart is what the relay does when an engine begins anew.
func (d *decoding) restart(s *decodeStream) {
	for _, number := range slices.Sorted(maps.Keys(s.ranks)) {
		r := s.ranks[number]
		d.events.Reset()
		r.conv.Cleared(&d.events, false)
		r.conv.Restart()
		d.show(r)
	}
}

// decodeLine is one line of stdin.
type decodeLine struct {
	ID         json.RawMessage `json:"id"`
	Stream     string          `json:"stream"`
	Payload    *string         `json:"payload_hex"`
	BlockSize  *uint64         `json:"kv_block_size"`
	WorkerID   *uint64         `json:"worker_id"`
	ImageToken *uint32         `json:"image_token_id"`
	VideoToken *uint32         `json:"video_token_id"`
}

// maxDecodeLine is the longest line: a batch of the largest frame, in hex, and
// as much again. A longer one is an error, and passed over.
const maxDecodeLine = 256 << 20

// lines shows every line of src.
func (d *decoding) lines(src io.Reader) error {
	in := bufio.NewReaderSize(src, 64<<10)
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		return errors.New("stdin is a gzip file: name it as FILE instead")
	}
	for number := 1; d.broken == nil; number++ {
		if in.Buffered() == 0 {
			d.flush() // who types, or follows a file, sees it now
		}
		line, err := readLine(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err == nil {
			err = d.convertLine(line, number)
		} else if !errors.Is(err, errLongLine) {
			return fmt.Errorf("line %d: reading: %w", number, err)
		}
		if err != nil {
			d.complain("line %d: %v", number, err)
		}
	}
	return nil
}

var errLongLine = fmt.Errorf("longer than %d bytes", maxDecodeLine)

// readLine is the next line, io.EOF at the end.
func readLine(in *bufio.Reader) (line []byte, err error) {
	tooLong := false
	for {
		part, err := in.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > maxDecodeLine; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err == nil || errors.Is(err, io.EOF) && (tooLong || len(line) > 0):
			if tooLong {
				return nil, errLongLine
			}
			return line, nil
		default:
			return nil, err
		}
	}
}

// convertLine shows one line. Its errors never quote it: payloads hold prompts.
func (d *decoding) convertLine(line []byte, number int) error {
	var l decodeLine
	if err := json.Unmarshal(line, &l); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return fmt.Errorf("field %q has a wrong type", wrong.Field)
		}
		return errors.New("no JSON object")
	}
	if l.Payload == nil {
		return errors.New("payload_hex is missing")
	}
	payload, err := hex.DecodeString(*l.Payload)
	if err != nil {
		return errors.New("payload_hex is no hex")
	}
	s := d.streams[l.Stream]
	if s == nil {
		if len(d.streams) == maxDecodeStreams {
			return fmt.Errorf("more than %d streams", maxDecodeStreams)
		}
		s = &decodeStream{ranks: map[uint32]*decodeRank{}}
		d.streams[l.Stream] = s
	}
	c := d.config
	c.ImageToken, c.VideoToken = l.ImageToken, l.VideoToken
	if l.BlockSize != nil {
		c.BlockSize = *l.BlockSize
	}
	if l.WorkerID != nil {
		c.WorkerID = *l.WorkerID
	}
	id := []byte(l.ID)
	if len(id) == 0 || string(id) == "null" {
		id = quoted(strconv.Itoa(number))
	}
	d.begin(id)
	return d.convert(s, c, payload)
}

// begin begins the line of the batch called id, a JSON value.
func (d *decoding) begin(id []byte) {
	d.line = append(append(append(d.line[:0], `{"id":`...), id...), `,"router_events":[`...)
	d.shown = 0
}

// show adds d.events, which are r's, to the line.
func (d *decoding) show(r *decodeRank) {
	for i := range d.events.Events {
		if d.shown > 0 {
			d.line = append(d.line, ',')
		}
		d.shown++
		r.id++
		d.line = convert.AppendEventJSON(d.line, &d.events.Events[i], r.worker, r.number, r.id)
	}
}

// convert ends the line with what becomes of its batch.
func (d *decoding) convert(s *decodeStream, c convert.Config, payload []byte) error {
	undecodable := d.batch.Decode(payload) != nil
	number := convert.RankOf(&d.batch, s.own) // of a batch that cannot be decoded: the own one
	r := s.ranks[number]
	if r == nil {
		if len(s.ranks) == maxDecodeRanks {
			return fmt.Errorf("more than %d ranks in one stream", maxDecodeRanks)
		}
		c.Rank = number
		r = &decodeRank{worker: c.WorkerID, number: number, conv: convert.New(c)}
		s.ranks[number] = r
	}
	before := r.conv.Stats()
	d.events.Reset()
	if undecodable {
		r.conv.Undecodable()
	} else {
		r.conv.Convert(&d.batch, &d.events)
	}
	after := r.conv.Stats()
	for _, n := range d.events.Notices {
		if n.Kind != convert.NoticeBlockSize {
			fmt.Fprintf(d.stderr, "kvrelay decode: rank %d: %s\n", number, n)
		}
	}

	d.show(r)
	d.line = append(d.line, `],"drops":{`...)
	comma := ""
	for reason := range convert.NumReasons {
		if n := after.Drops(reason) - before.Drops(reason); n > 0 {
			d.line = fmt.Appendf(d.line, `%s"%s":%d`, comma, reason, n)
			comma = ","
		}
	}
	d.line = append(d.line, "}}\n"...)
	if _, err := d.out.Write(d.line); err != nil {
		d.broken = err
	}
	return nil
}

func (d *decoding) flush() {
	if err := d.out.Flush(); err != nil {
		d.broken = err
	}
}

// quoted is plain text as a JSON string.
func quoted(text string) []byte { return strconv.AppendQuote(nil, text) }
