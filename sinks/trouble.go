package sinks

import (
	"maps"
	"time"
)

// repeatLog is how often the same trouble is logged again.
const repeatLog = time.Minute

// maxTold bounds the texts that are remembered as logged. Further ones are shown
// by State alone until one of these is a minute old.
const maxTold = 64

// linkState is what State tells of the connection; guarded by Publisher.mu.
type linkState struct {
	connected  bool
	server     string
	maxPayload int64
	lastError  string
	stream     string          // JetStream
	tales      map[string]bool // what was told once; of a handful of texts
	since      time.Time
	// troubled are the outboxes whose events are refused while there is a link, and why.
	troubled map[*Outbox]string

	// The log tells the same trouble once a minute, and a new connection, or that
	// events are taken again, only after a trouble that it told.
	told        bool
	toldRefusal bool
	warned      map[string]time.Time
}

// due says whether the log tells a trouble now.
func (l *linkState) due(text string, now time.Time) bool {
	if at, ok := l.warned[text]; ok && now.Sub(at) < repeatLog {
		return false
	}
	maps.DeleteFunc(l.warned, func(_ string, at time.Time) bool { return now.Sub(at) >= repeatLog })
	if len(l.warned) >= maxTold {
		return false
	}
	l.warned[text] = now
	return true
}

// say has State and the log tell why o's events are refused. One that was forgotten
// meanwhile is nobody's trouble: nothing would end it.
func (p *Publisher) say(o *Outbox, text string, err error) {
	p.failures.Add(1)
	p.mu.Lock()
	if _, live := p.live[o]; !live {
		p.mu.Unlock()
		return
	}
	l := &p.link
	l.lastError = err.Error()
	l.troubled[o] = l.lastError
	tell := l.due(l.lastError, p.o.Now())
	l.toldRefusal = l.toldRefusal || tell
	p.mu.Unlock()
	if tell {
		p.o.Logger.Warn(text, "error", err)
	}
}

// well ends what say has told of o; text is told when no other is troubled,
// if the trouble was.
func (p *Publisher) well(o *Outbox, text string) {
	p.mu.Lock()
	tell := p.link.settle(o) && p.link.toldRefusal
	if tell {
		p.link.toldRefusal = false
	}
	p.mu.Unlock()
	if tell {
		p.o.Logger.Info(text)
	}
}

// settle ends o's trouble; last says that it had one, and no other has.
func (l *linkState) settle(o *Outbox) (last bool) {
	text, was := l.troubled[o]
	if !was {
		return false
	}
	delete(l.troubled, o)
	if l.lastError == text {
		l.lastError = ""
		for _, l.lastError = range l.troubled {
			break
		}
	}
	return len(l.troubled) == 0
}
