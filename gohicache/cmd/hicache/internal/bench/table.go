package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// figure prints a value with four significant digits, and large ones without an exponent.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "0"
	case math.IsNaN(v) || math.IsInf(v, 0):
		return fmt.Sprint(v)
	case a >= 1e9:
		return fmt.Sprintf("%.4g G", v/1e9)
	case a >= 1e6:
		return fmt.Sprintf("%.4g M", v/1e6)
	case a >= 1e4:
		return fmt.Sprintf("%.4g k", v/1e3)
	case a >= 1000:
		return fmt.Sprintf("%.0f", v)
	case a < 1:
		return fmt.Sprintf("%.4f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// WriteJSON prints the rows as one array.
func WriteJSON(out io.Writer, rows []Row) error {
	if rows == nil {
		rows = []Row{}
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(rows)
}

// cells are a row as texts, in the order of header.
func (r *Row) cells() []string {
	peer, peerValue, ratio, bar, met := "", "", "", "", ""
	if r.Peer != nil {
		peer = *r.Peer
	}
	if r.PeerValue != nil {
		peerValue = figure(*r.PeerValue)
	}
	if r.Ratio != nil {
		ratio = figure(*r.Ratio)
	}
	if r.Bar != nil {
		bar, met = *r.Bar, "?"
	}
	if r.Meets != nil {
		met = map[bool]string{true: "yes", false: "NO"}[*r.Meets]
	}
	return []string{r.Work, r.Config, figure(r.Value), r.Unit, figure(r.Min), figure(r.Max), fmt.Sprint(r.Runs), peer, peerValue, ratio, bar, met}
}

var header = []string{"work", "config", "median", "unit", "min", "max", "runs", "peer", "peer's median", "ratio", "bar", "met"}

// WriteTable prints the rows for people.
func WriteTable(out io.Writer, rows []Row) error {
	lines := [][]string{header}
	for i := range rows {
		lines = append(lines, rows[i].cells())
	}
	return writeColumns(out, lines)
}

func writeColumns(out io.Writer, lines [][]string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, l := range lines {
		fmt.Fprintln(t, strings.Join(l, "\t"))
	}
	return t.Flush()
}

// WriteMarkdown prints the rows as a table for a document.
func WriteMarkdown(out io.Writer, rows []Row) error {
	lines := [][]string{header}
	for i := range rows {
		lines = append(lines, rows[i].cells())
	}
	return writePipes(out, lines)
}

func writePipes(out io.Writer, lines [][]string) error {
	for i, l := range lines {
		if _, err := fmt.Fprintf(out, "| %s |\n", strings.Join(l, " | ")); err != nil {
			return err
		}
		if i == 0 {
			fmt.Fprintln(out, strings.Repeat("|---", len(l))+"|")
		}
	}
	return nil
}
