package sinks

// push marks o as ready, and wakes Run where that is news to it. An outbox that
// has a predecessor of the same rank with unconfirmed events is parked: its
// `cleared` must not come in front of them, on this link or a later one. So is one
// whose rank another relay may still have.
func (p *Publisher) push(o *Outbox) {
	if p.o.Kind == JetStream { // its goroutine looks at the rest
		o.nudge()
		return
	}
	p.mu.Lock()
	switch {
	case o.queued:
		p.mu.Unlock()
		return
	case o.before != nil || o.unowned:
		o.parked = true
		p.mu.Unlock()
		return
	}
	o.queued = true
	p.ready = append(p.ready, o)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// pop takes the outbox that has been ready longest, nil when none is.
func (p *Publisher) pop() *Outbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return nil
	}
	o := p.ready[0]
	copy(p.ready, p.ready[1:])
	p.ready = p.ready[:len(p.ready)-1]
	o.queued = false
	return o
}

// rewindAll prepares every outbox for a new link: what is unconfirmed waits.
func (p *Publisher) rewindAll() {
	p.mu.Lock()
	live := make([]*Outbox, 0, len(p.live))
	for o := range p.live {
		live = append(live, o)
	}
	p.mu.Unlock()
	for _, o := range live {
		if o.rewind() {
			p.push(o)
		}
	}
}

// confirm notes that the server has what o had sent when its mark was set.
func (p *Publisher) confirm(o *Outbox) {
	bytes, events := o.confirm(o.mark)
	if events == 0 {
		return
	}
	p.confirmedEvents.Add(uint64(events))
	p.confirmedBytes.Add(uint64(bytes))
	p.unconfirmedBytes.Add(int64(-bytes))
	if o.released != nil {
		o.released(bytes)
	}
	p.forget(o)
	// Last, so that nothing of it is outstanding when Drain returns.
	if p.unconfirmedEvents.Add(int64(-events)) == 0 {
		p.notifyWaiters()
	}
}

// forget drops o when it is closed and confirmed, and lets its successor publish.
func (p *Publisher) forget(o *Outbox) {
	if !o.finished() {
		return
	}
	p.mu.Lock()
	_, known := p.live[o]
	delete(p.live, o)
	p.link.settle(o)
	k := rankKey{o.workerID, o.rank}
	before, after := o.before, o.after
	o.before, o.after = nil, nil
	if before != nil {
		before.after = after
	}
	unpark := false
	switch {
	case after != nil:
		after.before = before
		if before == nil {
			unpark, after.parked = after.parked, false
		}
	case p.latest[k] != o:
	case before != nil:
		p.latest[k] = before // a next one still has to wait for it
	default:
		delete(p.latest, k)
	}
	p.mu.Unlock()
	if known {
		o.mu.Lock()
		o.log.release()
		o.mu.Unlock()
		close(o.gone)
	}
	if unpark || after != nil && p.o.Kind == JetStream {
		p.push(after)
	}
}

// own lets o publish: its rank is this relay's.
func (p *Publisher) own(o *Outbox) {
	p.mu.Lock()
	o.unowned = false
	unpark := o.before == nil && o.parked
	if unpark {
		o.parked = false
	}
	p.mu.Unlock()
	if unpark || p.o.Kind == JetStream {
		p.push(o)
	}
}

// nudge has o's goroutine look again.
func (o *Outbox) nudge() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
