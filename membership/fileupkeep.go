package membership

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"time"
)

// Run touches the files, and writes one again that someone has removed or overwritten.
func (f *File) Run(ctx context.Context) {
	for sleep(ctx, f.every) {
		records := f.kept()
		if len(records) == 0 {
			continue
		}
		u, err := inFolder(ctx, f, func() (upkeep, error) { return f.touch(records), nil })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			u.failed.n, u.trouble = len(records), err
		}
		f.tell(&u)
	}
}

// kept are the values of the records that are to be kept alive, by key.
func (f *File) kept() map[string][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	records := map[string][]byte{}
	for key, r := range f.mine {
		if !r.leaving {
			records[key] = r.value
		}
	}
	return records
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

func (s *some) add(key string) {
	s.n++
	s.key = cmp.Or(s.key, key)
}

// touch keeps files alive.
func (f *File) touch(records map[string][]byte) (u upkeep) {
	for key, value := range records {
		if !f.keeps(key, value) {
			continue
		}
		path := f.path(key)
		there, err := readRecord(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = write(path, value)
		case err != nil:
		case bytes.Equal(there, value):
			now := time.Now()
			err = os.Chtimes(path, now, now)
		case !Restorable(key, there):
			u.taken.add(key)
		default:
			if err = write(path, value); err == nil {
				u.changed.add(key)
			}
		}
		if err != nil {
			u.failed.add(key)
			u.trouble = cmp.Or(u.trouble, err) // it names the file
		}
	}
	return u
}

// keeps says whether a record is still to be kept alive as it is: while the folder
// was waited for it may have been withdrawn, or put anew.
func (f *File) keeps(key string, value []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.mine[key]
	return ok && !r.leaving && bytes.Equal(r.value, value)
}

// tell tells of trouble, of each kind once a minute, and when records are kept alive again.
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
		f.troubled = true
		f.log.Error("records cannot be kept alive: routers forget this engine. Make the folder (MEMBERSHIP_PATH) one that kvrelay can write to", "root", f.root, "records", u.failed.n, "error", u.trouble)
	}
	if u.failed.n == 0 && f.troubled {
		f.troubled, f.told = false, time.Time{} // what comes next is news
		f.log.Info("the folder can be written to again: the records are kept alive", "root", f.root)
	}
	if f.changed += u.changed.n; due(u.changed, &f.toldChanged) {
		f.log.Warn("records that somebody had overwritten are there again", "records", u.changed.n, "key", u.changed.key, "so_far", f.changed)
	}
	if due(u.taken, &f.toldTaken) {
		f.log.Error(TakenOver, "key", u.taken.key)
	}
}
