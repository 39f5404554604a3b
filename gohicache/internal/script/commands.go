package script

// commands is the language: what `help` prints and what docs/SCRIPT.md documents, in its order. A usage of two lines takes input lines.
var commands []command

func init() {
	commands = []command{
		{"open", "open device=SIZE [host=SIZE] [page-tokens=N] [options]\n  NAME role=full|swa|state [k=BYTES] [v=BYTES] [layers=N] [window=N] ...",
			"opens an engine with these pools; what was open is closed", (*Interpreter).openEngine},
		{"close", "close", "closes the engine; BUSY while something is held", (*Interpreter).closeCommand},

		{"alloc", "alloc NAME POOL=PAGES ...", "takes pages in all pools or none; window pages go to the last pages taken", (*Interpreter).alloc},
		{"window", "window POOL=PAGES ...", "gives window pages to pages that have none", (*Interpreter).windowPages},
		{"extend", "extend SEQUENCE=TOKENS ... [pool=POOL] [window-tail=TOKENS] [copy-tail]", "grows sequences, all or none: tail page first", (*Interpreter).extend},
		{"fork", "fork NAME SEQUENCE", "a new sequence shares the pages of another", (*Interpreter).fork},
		{"free", "free POOL=PAGES ...", "gives pages back: ids of an owner end everywhere, window pages leave a tombstone", (*Interpreter).free},

		{"reserve", "reserve NAME POOL=PAGES ...", "takes pages without naming them; they do not move until load or cancel", (*Interpreter).reserve},
		{"cancel", "cancel RESERVATION|TICKET", "gives a reservation back; has a transfer copy no more", (*Interpreter).cancel},
		{"load", "load TICKET from=RESERVATION [class=CLASS] [after=TICKET]\n  copy POOL=PAGES from=HOST-PAGES\n  bind POOL=PAGES",
			"names the reserved pages and queues their copies in one call", (*Interpreter).load},
		{"back-up", "back-up TICKET [class=CLASS] [after=TICKET]\n  copy POOL=PAGES to=HOST-PAGES", "queues copies to the host", (*Interpreter).backUp},
		{"run", "run [N] [layers]", "lets queued copies happen: all, N transfers, or N layer groups", (*Interpreter).run},
		{"hold", "hold on|off [fail=N]", "whether transfers wait for run (on at open)", (*Interpreter).hold},
		{"fail", "fail N", "makes the next N transfers fail", (*Interpreter).failNext},
		{"poll", "poll [N]", "reads completions, which ends their pins", (*Interpreter).poll},
		{"ticket", "ticket TICKET", "how far a transfer is", (*Interpreter).showTicket},
		{"wait-layer", "wait-layer TICKET LAYER", "waits for one global layer of a load", (*Interpreter).waitLayer},

		{"lease", "lease NAME POOL=PAGES ...", "keeps pages in place and allocated", (*Interpreter).leasePages},
		{"release", "release LEASE", "ends a lease or a view", (*Interpreter).release},
		{"step", "step NAME [stream=N] POOL=PAGES ...", "opens a unit of compute: its pages stay while it is open", (*Interpreter).openStep},
		{"close-step", "close-step STEP", "closes a step; a fence stays, nothing is pinned", (*Interpreter).closeStep},
		{"translate", "translate [tokens] POOL=PAGES ...", "kernel ids of virtual pages; the sink where there is none", (*Interpreter).translate},
		{"where", "where POOL=PAGES ...", "places of virtual pages now", (*Interpreter).where},

		{"compact", "compact [pages=N] [bytes=SIZE] [pool=POOL] [host]", "packs pages within a budget", (*Interpreter).compact},
		{"compaction", "compaction lazy|eager|off", "when pages move", (*Interpreter).setCompaction},
		{"resize", "resize SIZE", "changes the device arena's size", (*Interpreter).resize},
		{"available", "available [POOL ...]", "what could be taken now, and with moves", (*Interpreter).available},
		{"joint", "joint POOL ...", "the most pages that fit in each of these pools at once", (*Interpreter).joint},
		{"fits", "fits POOL=PAGES ...", "whether a take would succeed", (*Interpreter).fits},
		{"plan", "plan POOL=PAGES ... evictable=(POOL:PAGES, ...) [prefer=full-first|swa-first]", "the smallest eviction that makes it fit", (*Interpreter).plan},

		{"host-take", "host-take NAME POOL=PAGES ...", "takes host pages in all pools or none", (*Interpreter).hostTake},
		{"host-free", "host-free POOL=HOST-PAGES ...", "gives host pages back", (*Interpreter).hostFree},
		{"host-view", "host-view NAME POOL=HOST-PAGES", "leases host pages as a reader does", (*Interpreter).hostView},
		{"host-available", "host-available [POOL ...]", "as available, of the host arena", (*Interpreter).hostAvailable},
		{"host-table", "host-table [POOL ...]", "as table, of the host arena", (*Interpreter).hostTable},

		{"stamp", "stamp POOL=PAGES ... [tag=N]", "writes each page's own stamp", (*Interpreter).stamp},
		{"check", "check [host] POOL=PAGES ... [of=PAGES] [tag=N]", "whether pages hold their stamps, or those of other pages", (*Interpreter).check},
		{"table", "table [POOL ...]", "span, counts, holes, and every page's place", (*Interpreter).table},
		{"map", "map [host] [POOL ...]", "one character a page: _ sink . gap x live o hole r reserved q quarantined, capitals pinned", (*Interpreter).pageMap},
		{"stats", "stats [COUNTER ...]", "counters of the engine", (*Interpreter).stats},
		{"verify", "verify", "recomputes every invariant", (*Interpreter).verify},

		{"cache-open", "cache-open device=SIZE [host=SIZE] [page-tokens=N] [storage=FOLDER] [policy=POLICY] [options]\n  NAME role=full|swa|state ...",
			"opens a cache; what was open is closed", (*Interpreter).openCache},
		{"cache-close", "cache-close", "closes the cache; BUSY while requests are open", (*Interpreter).closeCacheCommand},
		{"match", "match TOKENS ... [ns=NAMESPACE] [full-hit]", "how much of the tokens the cache could supply", (*Interpreter).match},
		{"insert", "insert TOKENS ... [ns=NAMESPACE]", "a whole request: match, load, check what was reused, compute the rest, publish", (*Interpreter).insert},
		{"begin", "begin NAME TOKENS ... [ns=NAMESPACE]", "a request that stays open", (*Interpreter).begin},
		{"finish", "finish NAME", "publishes an open request and ends it", (*Interpreter).finish},
		{"abandon", "abandon NAME", "ends an open request, publishing nothing", (*Interpreter).abandon},
		{"pin", "pin NAME TOKENS ... [ns=NAMESPACE]", "keeps a match, and its prefix in the tree", (*Interpreter).pin},
		{"unpin", "unpin NAME", "ends it", (*Interpreter).unpin},
		{"evict", "evict [host] POOL=PAGES ...", "gives up pages in the order of policy", (*Interpreter).evict},
		{"flush", "flush", "waits until all that was inserted is backed up and stored", (*Interpreter).flush},
		{"clear", "clear", "forgets everything on device and host", (*Interpreter).clear},
		{"drop", "drop ns=NAMESPACE", "forgets a namespace on device and host", (*Interpreter).drop},
		{"drive", "drive [N]", "lets copies of the cache happen: all, or N", (*Interpreter).drive},
		{"cache-hold", "cache-hold on|off [fail=N]", "whether copies wait for drive (off at open); the next N fail", (*Interpreter).cacheHold},
		{"cache-stats", "cache-stats [COUNTER ...]", "counters of the cache", (*Interpreter).cacheStats},
		{"cache-verify", "cache-verify", "recomputes every invariant of engine and tree", (*Interpreter).verifyCache},

		{"verbose", "verbose on|off", "whether errors show numbers and the library's sentence", (*Interpreter).setVerbose},
		{"help", "help [COMMAND]", "what commands there are", (*Interpreter).help},
	}
}
