package membership

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"time"
)

// Run touches the files, and writes one again that someone has removed or overwritten.
func (f *File) Run(ctx context.Context) {
	for sleep(ctx, f.every) {
		u, err := inFolder(ctx, f, func() (upkeep, error) { return f.touch(), nil })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			u.add(&u.failed, "", err)
		}
		f.tell(&u)
	}
}

// upkeep is what became of the files in one round.
type upkeep struct {
	failed, changed, taken some
	trouble                error // the first
}

// some are records.
type some struct {
	n   int
	key string // of the first
}

func (u *upkeep) add(s *some, key string, err error) {
	if s.n++; s.n == 1 {
		s.key = key
	}
	u.trouble = cmp.Or(u.trouble, err)
}

// touch keeps all files alive.
func (f *File) touch() (u upkeep) {
	f.mu.Lock()
	records := maps.Clone(f.mine)
	f.mu.Unlock()
	for key, r := range records {
		if !f.keeps(key) {
			continue
		}
		path := f.path(key)
		there, err := readRecord(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = write(path, r.value)
		case err != nil:
		case bytes.Equal(there, r.value):
			now := time.Now()
			err = os.Chtimes(path, now, now)
		case !Restorable(key, there):
			u.add(&u.taken, key, nil)
		default:
			if err = write(path, r.value); err == nil {
				u.add(&u.changed, key, nil)
			}
		}
		if err != nil {
			u.add(&u.failed, key, err) // it names the file
		}
	}
	return u
}

// keeps says whether a record is kept alive: it may be withdrawn while the folder hangs.
func (f *File) keeps(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.mine[key]
	return ok && !r.leaving
}

// tell tells of trouble, of each kind once a minute.
func (f *File) tell(u *upkeep) {
	now := time.Now()
	due := func(s some, told *time.Time) bool {
		if s.n == 0 || now.Sub(*told) < repeatLog {
			return false
		}
		*told = now
		return true
	}
	if due(u.failed, &f.told) {
		f.log.Error("records cannot be kept alive: routers forget this engine. Make the folder (MEMBERSHIP_PATH) one that kvrelay can write to", "root", f.root, "records", u.failed.n, "error", u.trouble)
	}
	if f.changed += u.changed.n; due(u.changed, &f.toldChanged) {
		f.log.Warn("records that somebody had overwritten are there again", "records", u.changed.n, "key", u.changed.key, "so_far", f.changed)
	}
	if due(u.taken, &f.toldTaken) {
		f.log.Error(TakenOver, "key", u.taken.key)
	}
}
