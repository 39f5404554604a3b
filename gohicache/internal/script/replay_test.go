package script

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// logOf records a take and a free.
func logOf(t *testing.T) []byte {
	t.Helper()
	e, err := ffi.Open(&ffi.Options{Backend: ffi.BackendNull, DeviceBytes: 16 << 10, Pools: []ffi.PoolOptions{
		{Role: ffi.RoleFull, PageTokens: 4, LayerIDs: []uint32{0}, KRowBytes: 16}}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	pages := make([]ids.VirtualPage, 3)
	for _, err := range []error{e.LogStart(1 << 20), e.Alloc([]ffi.Take{{Pages: pages}}), e.Free([]ffi.Pages{{Pages: pages}}), e.LogStop()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	buffer := make([]byte, 1<<20)
	n, err := e.LogDrain(buffer)
	if err != nil {
		t.Fatal(err)
	}
	return buffer[:n]
}

func TestReplayCommand(t *testing.T) {
	good := logOf(t)
	for _, c := range []struct {
		name string
		log  []byte
		code int
		says string
	}{
		{"good", good, 0, "2 records repeated, every answer as recorded; the log ends stopped"},
		{"cut", good[:len(good)-5], 2, "is cut"},
		{"cut between records", good[:len(good)-28], 0, "ends without a mark"},
		{"no log", []byte("no"), 2, "not an operation log"},
	} {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, c.log, 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errOut bytes.Buffer
		if code := Replay(file, Options{}, &out, &errOut); code != c.code || !strings.Contains(out.String()+errOut.String(), c.says) {
			t.Errorf("%s: code %d, want %d: %s%s", c.name, code, c.code, &out, &errOut)
		}
	}
	var out, errOut bytes.Buffer
	if code := Replay(filepath.Join(t.TempDir(), "none"), Options{}, &out, &errOut); code != 2 {
		t.Errorf("a file that is not there: code %d", code)
	}
}
