package hicache

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/hicache/hicache/gohicache/storage"
	"github.com/hicache/hicache/gohicache/storage/file"
)

func good() Options {
	return Options{DeviceBytes: 1 << 20, Pools: []PoolOptions{
		{Role: Full, Layers: []int{0, 2}, LayerBytes: 64},
		{Role: SWA, Layers: []int{1, 3}, LayerBytes: 64, WindowTokens: 32},
	}}
}

// TestValidateNamesTheField spoils one field at a time.
func TestValidateNamesTheField(t *testing.T) {
	o := good()
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field string
		spoil func(*Options)
	}{
		{"DeviceBytes", func(o *Options) { o.DeviceBytes = 0 }},
		{"DeviceBytes", func(o *Options) { o.DeviceBytes = 1 << 63 }},
		{"HostBytes", func(o *Options) { o.HostBytes = ^uint64(0) }},
		{"PageTokens", func(o *Options) { o.PageTokens = -1 }},
		{"RequestTokensMax", func(o *Options) { o.RequestTokensMax = -1 }},
		{"WriteThreshold", func(o *Options) { o.WriteThreshold = -2 }},
		{"Eviction", func(o *Options) { o.Eviction = "random" }},
		{"WritePolicy", func(o *Options) { o.WritePolicy = 9 }},
		{"Prefetch", func(o *Options) { o.Prefetch = 9 }},
		{"PrefetchTimeout", func(o *Options) { o.PrefetchTimeout = -1 }},
		{"Compaction", func(o *Options) { o.Compaction = 9 }},
		{"StoreQueueMax", func(o *Options) { o.StoreQueueMax = -1 }},
		{"StorageBatch", func(o *Options) { o.StorageBatch = -1 }},
		{"CopyThreads", func(o *Options) { o.CopyThreads = 1000 }},
		{"H2DSlowdownMax", func(o *Options) { o.H2DSlowdownMax = 10001 }},
		{"D2HSlowdownMax", func(o *Options) { o.D2HSlowdownMax = -1 }},
		{"HostArena", func(o *Options) { o.HostArena = 9 }},
		{"HostLayout", func(o *Options) { o.HostLayout = 9 }},
		{"HostLayout", func(o *Options) { o.HostLayout = HostPageHead }},
		{"HeadGroups", func(o *Options) { o.HeadGroups = -1 }},
		{"Pools[0] (full).HostLayout", func(o *Options) { o.Pools[0].HostLayout = 9 }},
		{"Pools[0] (full).HostLayout", func(o *Options) { o.Pools[0].HostLayout = HostPageHead }},
		{"Pools[0] (full).HostPages", func(o *Options) { o.Pools[0].HostPages = -1 }},
		{"Pools[0] (full).Heads", func(o *Options) { o.Pools[0].Heads = 3 }},
		{"Pools[1] (swa).WindowTokens", func(o *Options) { o.Pools[1].WindowTokens = 1<<32 + 64 }},
		{"Pools", func(o *Options) {
			for i := range 14 {
				o.Pools = append(o.Pools, PoolOptions{Name: fmt.Sprint("swa", i), Role: SWA, Layers: []int{10 + i}, LayerBytes: 64, WindowTokens: 32})
			}
		}},
		{"Rank", func(o *Options) { o.Rank = 1 }},
		{"Device", func(o *Options) { o.Device = CUDA(-1) }},
		{"Pools", func(o *Options) { o.Pools = nil }},
		{"Pools", func(o *Options) { o.Pools = o.Pools[1:] }},
		{"Pools[1] (swa).Role", func(o *Options) { o.Pools[1].Role, o.Pools[1].Name = 0, "swa" }},
		{"Pools[1] (full).Name", func(o *Options) { o.Pools[1].Name = "full" }},
		{"Pools[0] (full).Layers", func(o *Options) { o.Pools[0].Layers = nil }},
		{"Pools[0] (full).Layers", func(o *Options) { o.Pools[0].Layers = []int{2, 0} }},
		{"Pools[1] (swa).Layers", func(o *Options) { o.Pools[1].Layers = []int{2} }},
		{"Pools[0] (full).LayerBytes", func(o *Options) { o.Pools[0].LayerBytes = 48 }},
		{"Pools[0] (full).LayerBytes", func(o *Options) { o.Pools[0].KRowBytes = 16 }},
		{"Pools[0] (full).LayerBytes", func(o *Options) { o.Pools[0].LayerBytes = 0 }},
		{"Pools[1] (swa).WindowTokens", func(o *Options) { o.Pools[1].WindowTokens = 0 }},
		{"Pools[0] (full).WindowTokens", func(o *Options) { o.Pools[0].WindowTokens = 8 }},
		{"Pools[1] (swa).VirtualPages", func(o *Options) { o.Pools[1].VirtualPages = 8 }},
		{"Pools[0] (full).VirtualPages", func(o *Options) { o.Pools[0].Static = true }},
	} {
		o := good()
		c.spoil(&o)
		err := o.Validate()
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.field+":") {
			t.Errorf("%s: got %v", c.field, err)
		}
	}
}

// objectStore cannot keep a page as one object.
type objectStore struct{ storage.Store }

func (objectStore) Capabilities() storage.Capabilities { return storage.Capabilities{} }

// TestRefusals has one case a row of the table: each pair is refused, and the error names both.
func TestRefusals(t *testing.T) {
	cases := []func(*Options){
		func(o *Options) { o.WritePolicy = WriteBack },
		func(o *Options) { o.HostBytes, o.StagingBytes, o.Storage = 1<<20, 1<<20, file.New(t.TempDir()) },
		func(o *Options) { o.Device, o.Storage, o.HostBytes = Null, file.New(t.TempDir()), 1<<20 },
		func(o *Options) { o.HostArena, o.Storage = HostArenaEnvelope, objectStore{file.New(t.TempDir())} },
		func(o *Options) { o.HostArena, o.HostLayout = HostArenaEnvelope, HostLayerFirst },
		func(o *Options) { o.HostArena, o.Pools[1].HostLayout = HostArenaEnvelope, HostLayerFirst },
		func(o *Options) { o.Pools[0].HostPages = 5 },
		func(o *Options) { o.HeadGroups, o.Pools[0].Heads, o.Pools[0].LayerBytes = 3, 2, 128 },
		func(o *Options) { o.Device, o.Faults = CUDA(0), &FaultOptions{} },
	}
	if len(cases) != len(Refusals()) {
		t.Fatalf("%d cases for %d rows", len(cases), len(Refusals()))
	}
	for i, r := range Refusals() {
		o := good()
		cases[i](&o)
		err := o.Validate()
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), r.A+" with "+r.B) {
			t.Errorf("%s with %s: got %v", r.A, r.B, err)
		}
	}
}

// TestOptionTable: the table lists the fields of the structs, in their order, and nothing else.
func TestOptionTable(t *testing.T) {
	var names []string
	fields := func(prefix string, of reflect.Type) {
		for i := range of.NumField() {
			names = append(names, prefix+of.Field(i).Name)
		}
	}
	fields("", reflect.TypeFor[Options]())
	fields("Pools[].", reflect.TypeFor[PoolOptions]())
	table := OptionTable()
	if len(names) != len(table) {
		t.Fatalf("%d fields, %d rows", len(names), len(table))
	}
	for i, row := range table {
		if row.Name != names[i] || row.Doc == "" || row.Default == "" {
			t.Errorf("row %d is %+v, the field is %s", i, row, names[i])
		}
	}
	o := good()
	d := o.withDefaults()
	if d.PageTokens != 16 || d.WriteThreshold != 2 || d.Ranks != 1 || d.Eviction != "lru" || d.StoreQueueMax != 65536 || d.StorageBatch != 32 ||
		d.CopyThreads != 1 || d.PrefetchTimeout.String() != "1s" || d.PrefetchTimeoutPerKiTokens.String() != "250ms" || d.Device.String() != "cpu" ||
		d.WritePolicy.String() != "write_through" || d.Pools[0].Name != "full" || d.Clock == nil || d.Logger == nil {
		t.Errorf("defaults differ from the table: %+v", d)
	}
}

func TestParseWritePolicy(t *testing.T) {
	for p := WriteThrough; p <= WriteBack; p++ {
		if q, err := ParseWritePolicy(p.String()); err != nil || q != p {
			t.Errorf("%v: %v, %v", p, q, err)
		}
	}
	if _, err := ParseWritePolicy("write_behind"); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestNamespaceIdentity(t *testing.T) {
	list := []Namespace{{}, Salt(""), Salt("a"), Namespace{}.WithLoRA(""), Namespace{}.WithLoRA("a"), Salt("bc").WithLoRA("a"), Salt("c").WithLoRA("ab"),
		Salt("").WithLoRA("")}
	seen := map[Namespace]bool{}
	for _, n := range list {
		if seen[n] {
			t.Errorf("%+v equals another", n)
		}
		seen[n] = true
	}
	if !list[0].IsDefault() || list[1].IsDefault() {
		t.Error("absent and empty are the same")
	}
}
