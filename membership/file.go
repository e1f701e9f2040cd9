package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// touchEvery keeps a file alive: Dynamo removes one that is older than 10 s.
	touchEvery = 3 * time.Second
	// deadFile is the age of a file that nobody keeps alive: Dynamo touches its
	// own every 3.3 s.
	deadFile = 7 * time.Second
	// maxRecord is the longest file that is read; a longer one is no record.
	maxRecord = 1 << 20
)

// tempPrefix begins the names of files that are being written: Dynamo's watcher
// ignores them.
const tempPrefix = ".tmp_"

// File is Dynamo's file backend (DYN_DISCOVERY_BACKEND=file): a folder shared by
// workers and routers, a file a record.
type File struct {
	root  string
	log   *slog.Logger
	every time.Duration // touchEvery

	turn chan struct{} // a token for who is in the folder

	mu    sync.Mutex
	mine  map[string]mine                // by key
	ahead map[string]map[string]sighting // files that are ahead of our clock, by prefix that was listed, and name

	// Owned by Run: when it told of trouble last, of files that were overwritten,
	// of those that another process has taken.
	told, toldChanged, toldTaken time.Time
	troubled                     bool // the newest that was told of the folder is trouble
	changed                      int  // files that were overwritten, and written again
}

// mine is a record that was put, or is to be removed.
type mine struct {
	value   []byte
	leaving bool // Delete has begun: it is not kept alive, also where a Put that hung comes to its end
}

// sighting is when a file was seen first with this time.
type sighting struct{ modified, at time.Time }

// NewFile is a Store in the folder root (DYN_FILE_KV), which is made when it is absent.
func NewFile(root string, log *slog.Logger) *File {
	return &File{
		root: root, log: log, every: touchEvery, turn: make(chan struct{}, 1),
		mine: map[string]mine{}, ahead: map[string]map[string]sighting{},
	}
}

// Put writes a file beside its place and moves it there.
func (f *File) Put(ctx context.Context, key string, value []byte) error {
	f.mu.Lock()
	if f.mine[key].leaving { // what Delete could not do is not wanted any more
		delete(f.mine, key)
	}
	f.mu.Unlock()
	_, err := inFolder(ctx, f, func() (struct{}, error) {
		if err := write(f.path(key), value); err != nil {
			return struct{}{}, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.mine[key].leaving {
			f.mine[key] = mine{value: value}
		}
		return struct{}{}, nil
	})
	if err != nil {
		return fmt.Errorf("MEMBERSHIP_PATH must be a folder that kvrelay can write to: %w", err)
	}
	return nil
}

// Delete removes a file, but for one that another process has taken. From its
// begin on nobody keeps the file alive.
func (f *File) Delete(ctx context.Context, key string) error {
	f.mu.Lock()
	r := f.mine[key]
	r.leaving = true
	f.mine[key] = r
	f.mu.Unlock()
	_, err := inFolder(ctx, f, func() (struct{}, error) {
		path := f.path(key)
		if r.value != nil { // it was put here
			if there, err := readRecord(path); err == nil && !bytes.Equal(there, r.value) && !Restorable(key, there) {
				return struct{}{}, nil
			}
		}
		return struct{}{}, remove(path)
	})
	if err != nil {
		return fmt.Errorf("MEMBERSHIP_PATH must be a folder that kvrelay can write to: %w", err)
	}
	f.mu.Lock()
	delete(f.mine, key)
	f.mu.Unlock()
	return nil
}

// List reads the files of a bucket whose keys begin with prefix.
func (f *File) List(ctx context.Context, prefix string) ([]Entry, error) {
	list, err := inFolder(ctx, f, func() ([]Entry, error) { return f.list(prefix) })
	if err != nil {
		return nil, fmt.Errorf("MEMBERSHIP_PATH must be a folder that kvrelay can read: %w", err)
	}
	return list, nil
}

func (f *File) list(prefix string) ([]Entry, error) {
	bucket, rest := splitKey(prefix)
	dir := filepath.Join(f.root, filepath.FromSlash(bucket))
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Entry
	ahead := map[string]sighting{}
	for _, d := range files {
		name := d.Name()
		if !strings.HasPrefix(name, escape(rest)) || escape(unescape(name)) != name {
			continue // the second: somebody's copy of a record, say, which is no key's file
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxRecord {
			continue // it has gone meanwhile, or is no record
		}
		value, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue // likewise
		}
		out = append(out, Entry{
			Key: bucket + "/" + unescape(name), Value: value,
			Dead: f.dead(prefix, name, info.ModTime(), ahead),
		})
	}
	f.mu.Lock()
	f.ahead[prefix] = ahead
	f.mu.Unlock()
	return out, nil
}

// dead says whether nobody keeps a file alive that was modified then: it is
// old, or so far ahead of our clock, which was set back, that it would not be old
// for long, and has stood still while we looked. ahead are those to be looked at again.
func (f *File) dead(prefix, name string, modified time.Time, ahead map[string]sighting) bool {
	age := time.Since(modified)
	if age >= -deadFile {
		return age > deadFile
	}
	f.mu.Lock()
	s, seen := f.ahead[prefix][name]
	f.mu.Unlock()
	if !seen || !s.modified.Equal(modified) {
		s = sighting{modified, time.Now()}
	}
	ahead[name] = s
	return time.Since(s.at) > deadFile
}

func (f *File) path(key string) string {
	bucket, rest := splitKey(key)
	return filepath.Join(f.root, filepath.FromSlash(bucket), escape(rest))
}
