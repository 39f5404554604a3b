package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/replay"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/size"
	"github.com/hicache/hicache/gohicache/storage/file"
)

// parseStorage splits DIR[:SIZE]. What follows the last colon is a size; a folder with a colon in the last part of its name ends with a slash.
func parseStorage(text string) (dir string, limit int64, err error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 || strings.ContainsRune(text[at+1:], '/') {
		return text, 0, nil
	}
	s, err := size.Parse(text[at+1:])
	switch {
	case err != nil:
		return "", 0, fmt.Errorf("after the last colon of %q: %w (a folder whose own name has a colon ends with a slash)", text, err)
	case s.Tokens != 0:
		return "", 0, fmt.Errorf("size %q: want bytes", text[at+1:])
	case s.IsZero():
		return "", 0, fmt.Errorf("size %q: a store of 0 bytes", text[at+1:])
	}
	return text[:at], s.Bytes, nil
}

// openStore opens the storage tier. A folder that cannot be used is not an error: the run goes on without it and says so.
func (o *replayOptions) openStore(c *replay.Config, errOut io.Writer) error {
	if o.storage == "" {
		return nil
	}
	dir, limit, err := parseStorage(o.storage)
	if err != nil {
		return fmt.Errorf("option --storage: %w", err)
	}
	if dir == "" {
		return fmt.Errorf("option --storage: %q names no folder", o.storage)
	}
	if o.backend == "null" {
		return fmt.Errorf("options --storage and --backend: the null backend has no bytes to store")
	}
	c.StoreName = "file " + o.storage
	store, err := file.Open(dir, file.Options{BytesMax: limit})
	if err != nil {
		c.Degraded = fmt.Sprintf("%s: %v", dir, err)
		fmt.Fprintf(errOut, "hicache replay: goes on without storage: %s\n", c.Degraded)
		return nil
	}
	c.Store = store
	return nil
}
