package membership

import (
	"context"
	"crypto/rand"
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

	mu    sync.Mutex
	mine  map[string][]byte              // records that are kept alive, by key
	ahead map[string]map[string]sighting // files that are ahead of our clock, by prefix that was listed, and name

	told time.Time // when Run told of trouble last; owned by Run
}

// sighting is when a file was seen first with this time.
type sighting struct{ modified, at time.Time }

// NewFile is a Store in the folder root (DYN_FILE_KV), which is made when it is absent.
func NewFile(root string, log *slog.Logger) *File {
	return &File{root: root, log: log, every: touchEvery, mine: map[string][]byte{}, ahead: map[string]map[string]sighting{}}
}

// Run touches the files, and writes one again that someone has removed.
func (f *File) Run(ctx context.Context) {
	for sleep(ctx, f.every) {
		var trouble error // the first
		failed := 0
		f.mu.Lock()
		for key, value := range f.mine {
			path := f.path(key)
			now := time.Now()
			err := os.Chtimes(path, now, now)
			if errors.Is(err, fs.ErrNotExist) {
				err = write(path, value)
			}
			if err != nil {
				if failed++; failed == 1 {
					trouble = err // it names the file
				}
			}
		}
		f.mu.Unlock()
		if failed > 0 && time.Since(f.told) > repeatLog {
			f.told = time.Now()
			f.log.Error("records cannot be kept alive: routers forget this engine. Make the folder (MEMBERSHIP_PATH) one that kvrelay can write to", "root", f.root, "records", failed, "error", trouble)
		}
	}
}

// Put writes a file beside its place and moves it there.
func (f *File) Put(_ context.Context, key string, value []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := write(f.path(key), value); err != nil {
		return fmt.Errorf("MEMBERSHIP_PATH must be a folder that kvrelay can write to: %w", err)
	}
	f.mine[key] = value
	return nil
}

// Delete removes a file.
func (f *File) Delete(_ context.Context, key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.mine, key)
	if err := remove(f.path(key)); err != nil {
		return fmt.Errorf("MEMBERSHIP_PATH must be a folder that kvrelay can write to: %w", err)
	}
	return nil
}

// List reads the files of a bucket whose keys begin with prefix.
func (f *File) List(_ context.Context, prefix string) ([]Entry, error) {
	bucket, rest := splitKey(prefix)
	dir := filepath.Join(f.root, filepath.FromSlash(bucket))
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("MEMBERSHIP_PATH must be a folder that kvrelay can read: %w", err)
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

// splitKey is a key's bucket, which is a folder, and the rest, which is a file's name.
func splitKey(key string) (bucket, rest string) {
	i := strings.IndexByte(key, '/') + 1
	j := i + strings.IndexByte(key[i:], '/')
	return key[:j], key[j+1:]
}

// write puts a file where a reader sees all of it or none.
func write(path string, value []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o777); err != nil { // others write there too: the umask decides
		return err
	}
	temp := filepath.Join(dir, tempPrefix+rand.Text())
	if err := os.WriteFile(temp, value, 0o666); err != nil {
		return errors.Join(err, remove(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, remove(temp))
	}
	return nil
}

// remove removes what may not be there.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// escape writes every byte but ASCII letters and digits as %XX.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// unescape undoes escape. What is no escape stays as it is.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		var c byte
		if s[i] == '%' && i+2 < len(s) {
			if n, err := fmt.Sscanf(s[i+1:i+3], "%02X", &c); n == 1 && err == nil {
				b.WriteByte(c)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
