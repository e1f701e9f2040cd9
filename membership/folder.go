package membership

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// folderTime bounds one call to the folder; after it the call fails, and whoever
// called tries again.
const folderTime = 10 * time.Second

var errFolderHangs = fmt.Errorf("the folder has not answered for %v", folderTime)

// inFolder has op be in the folder, and returns its error, or ctx's. Nobody can
// end a call to a network folder whose server hangs: such an op is left behind,
// and keeps the turn until the server answers, so that there is one at most.
func inFolder[T any](ctx context.Context, f *File, op func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	ctx, cancel := context.WithTimeoutCause(ctx, folderTime, errFolderHangs)
	defer cancel()
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	done := make(chan result, 1)
	go func() {
		v, err := op()
		<-f.turn
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// splitKey is a key's bucket, which is a folder, and the rest, which is a file's name.
func splitKey(key string) (bucket, rest string) {
	i := strings.IndexByte(key, '/') + 1
	j := i + strings.IndexByte(key[i:], '/')
	return key[:j], key[j+1:]
}

// readRecord reads a record's file; what cannot be one is nil.
func readRecord(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxRecord {
		return nil, err
	}
	return os.ReadFile(path)
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
