package bench

import (
	"bytes"
	"fmt"
	"os"
)

// ReplaceSection puts text between the lines "<!-- bench NAME -->" and "<!-- end NAME -->" of a document.
func ReplaceSection(path, name, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	first, last := []byte("<!-- bench "+name+" -->\n"), []byte("<!-- end "+name+" -->\n")
	from, to := bytes.Index(old, first), bytes.Index(old, last)
	if from < 0 || to < from {
		return fmt.Errorf("%s has no section between %q and %q", path, bytes.TrimSpace(first), bytes.TrimSpace(last))
	}
	var out bytes.Buffer
	out.Write(old[:from+len(first)])
	out.WriteString("\n" + text + "\n")
	out.Write(old[to:])
	return os.WriteFile(path, out.Bytes(), 0o644)
}
