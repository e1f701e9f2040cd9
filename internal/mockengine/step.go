package mockengine

// Step is one scheduler step of the rank: faults strike, the workload goes on,
// and everything that happened since the last step leaves as one batch. It
// reports whether there was a batch.
func (r *Rank) Step() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.alive() {
		return false
	}
	if r.late > 0 {
		if r.late--; r.late == 0 {
			r.logged(r.OpenReplay())
		}
	}
	if r.traffic == nil || !r.traffic.done() { // then silence, without faults
		r.strike()
		if r.dead || r.frozen {
			return false
		}
	}
	return r.work()
}

// alive reports whether the rank runs, and counts down to the end of a fault
// that keeps it from running.
func (r *Rank) alive() bool {
	if !r.dead && !r.frozen {
		return true
	}
	if r.wait == 0 {
		return false // until the caller says so
	}
	if r.wait--; r.wait > 0 {
		return false
	}
	if r.frozen {
		r.frozen = false
		r.Publisher.Thaw()
	} else {
		r.logged(r.start())
	}
	return true
}

func (r *Rank) strike() {
	life, evict := r.inj.Step()
	if evict {
		keep, _ := r.inj.Has(FaultEvict)
		r.EvictHistory(int(keep))
	}
	if life == "" {
		return
	}
	r.o.Log.Info("fault", "kind", string(life), "rank", r.number, "next_seq", r.NextSeq())
	switch life {
	case FaultRestart:
		r.reset()
		r.Publisher.Restart()
		r.begin()
	case FaultOvertake:
		r.overtake()
	case FaultKill:
		r.kill(downSteps)
	case FaultCut:
		r.Cut()
	case FaultFreeze:
		r.frozen, r.wait = true, downSteps
		r.Publisher.Freeze()
	case FaultHalfOpen:
		r.reset()
		r.Publisher.HalfOpen()
		r.begin()
	}
}

// overtake is a restart during which nobody is connected until the new process
// has drawn more numbers than the old one had.
func (r *Rank) overtake() {
	old := r.NextSeq()
	r.reset()
	r.Publisher.Kill()
	// A step may publish nothing; a workload that hardly does is let off.
	for i := uint64(0); i < 100*(old+1) && r.NextSeq() <= old && !r.traffic.done(); i++ {
		r.work()
	}
	r.logged(r.Publisher.Start())
	r.begin()
}

// work lets the workload do one step and publishes; mu is held.
func (r *Rank) work() bool {
	if r.traffic != nil {
		r.traffic.next(r.pool)
	}
	return r.publish()
}

// publish sends the events since the last batch as one; mu is held.
func (r *Rank) publish() bool {
	if r.dead || r.frozen {
		return false
	}
	events := r.pool.Take()
	if len(events) == 0 || r.o.Role == Decode {
		return false
	}
	r.Publish(r.enc.Encode(nil, float64(r.o.Now().UnixNano())/1e9, events))
	return true
}

// leave sends what a request did as a batch. An engine without a clock of its
// own takes it for a step, so that its faults strike and end by requests.
func (r *Rank) leave() {
	if r.o.Rate == 0 {
		r.Step()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish()
}

func (r *Rank) logged(err error) {
	if err != nil {
		r.o.Log.Error("mock engine rank cannot listen again", "rank", r.number, "err", err)
	}
}
