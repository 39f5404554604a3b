package workload

import (
	"container/heap"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
)

const chatAbout = `48 users, each in one conversation after another. A conversation begins with one of 24 system prompts (Zipf 1.2; lengths
lognormal, median 512 tokens, sigma 0.7, 64 to 4096) and has a geometric number of turns (mean 5). A turn adds a message (lognormal, median
48, sigma 1.0, 4 to 2048) and asks for an answer (lognormal, median 220, sigma 0.8, 8 to 1536). The whole history, answers included, is the
next prompt. Pauses are lognormal (median 25 s, sigma 1.2); one turn in eight follows a pause 40 times as long. One turn in twenty edits the
last message, so that the history forks. One conversation in eight is in the namespace "tenant-b", which shares nothing with the others.`

const agentAbout = `16 coding agents in closed loop. A session begins with one of 6 instruction-and-tool prompts (Zipf 1.0; lengths lognormal,
median 6000 tokens, sigma 0.5, 2000 to 16000) and a task (lognormal, median 400, sigma 0.8, 20 to 4000), then takes a geometric number of
steps (mean 25). A step asks for an answer (lognormal, median 120, sigma 0.9, 8 to 4096) and appends a tool's output (lognormal, median 500,
sigma 1.3, 20 to 12000). The whole history is the next prompt. Steps are 0.3 to 8 s apart.`

// dialogue is a population of users, each of whom adds to a history and asks, again and again.
type dialogue struct {
	s       *stream
	rules   rules
	systems []text
	popular zipf
	users   queue
}

// rules are what tells chat from agent.
type rules struct {
	turnsMean      float64
	first, message func(*stream) int // tokens that the user (or a tool) adds
	answer         func(*stream) int
	pauseMS        func(*stream) float64
	forkOneIn      int // one turn in so many edits the last message; 0 never
	tenantOneIn    int // one conversation in so many is in another namespace; 0 none
}

type user struct {
	atMS      float64
	order     int // breaks ties of time, so that a seed gives one order
	turnsLeft int
	history   text
	before    text // history before the last message
	fresh     bool // no turn yet
	namespace string
}

func newChat(s *stream) stepper {
	return newDialogue(s, 48, s.shared(24, 512, 0.7, 64, 4096), newZipf(24, 1.2), rules{
		turnsMean: 5,
		first:     func(s *stream) int { return s.lognormal(48, 1.0, 4, 2048) },
		message:   func(s *stream) int { return s.lognormal(48, 1.0, 4, 2048) },
		answer:    func(s *stream) int { return s.lognormal(220, 0.8, 8, 1536) },
		pauseMS: func(s *stream) float64 {
			ms := float64(s.lognormal(25000, 1.2, 1000, 3600000))
			if s.rng.IntN(8) == 0 {
				ms *= 40
			}
			return ms
		},
		forkOneIn:   20,
		tenantOneIn: 8,
	})
}

func newAgent(s *stream) stepper {
	return newDialogue(s, 16, s.shared(6, 6000, 0.5, 2000, 16000), newZipf(6, 1.0), rules{
		turnsMean: 25,
		first:     func(s *stream) int { return s.lognormal(400, 0.8, 20, 4000) },
		message:   func(s *stream) int { return s.lognormal(500, 1.3, 20, 12000) },
		answer:    func(s *stream) int { return s.lognormal(120, 0.9, 8, 4096) },
		pauseMS:   func(s *stream) float64 { return 300 + 7700*s.rng.Float64() },
	})
}

func newDialogue(s *stream, users int, systems []text, popular zipf, r rules) *dialogue {
	d := &dialogue{s: s, rules: r, systems: systems, popular: popular}
	for i := range users {
		d.users = append(d.users, &user{order: i, atMS: r.pauseMS(s) / 4})
	}
	heap.Init(&d.users)
	return d
}

func (d *dialogue) next() *trace.Request {
	u := d.users[0]
	s, r := d.s, d.rules
	answer := min(r.answer(s), s.PromptTokensMax/4)
	if u.turnsLeft == 0 || u.history.tokens >= s.PromptTokensMax-s.Options.BlockTokens {
		d.begin(u)
	}
	add := r.message(s)
	if u.fresh {
		add = r.first(s)
	} else if r.forkOneIn > 0 && s.rng.IntN(r.forkOneIn) == 0 {
		u.history = u.before.fork(s)
	}
	u.before, u.fresh = text{ids: u.history.ids[:len(u.history.ids):len(u.history.ids)], tokens: u.history.tokens}, false
	u.history.grow(s, max(1, min(add, s.PromptTokensMax-u.history.tokens)))
	req := u.history.ask(s, u.atMS, u.namespace, answer)
	u.turnsLeft--
	u.atMS += r.pauseMS(s)
	heap.Fix(&d.users, 0)
	return req
}

func (d *dialogue) begin(u *user) {
	s := d.s
	u.turnsLeft, u.fresh, u.namespace = s.geometric(d.rules.turnsMean), true, ""
	if n := d.rules.tenantOneIn; n > 0 && s.rng.IntN(n) == 0 {
		u.namespace = "tenant-b"
	}
	u.history = d.systems[d.popular.draw(s)].fork(s)
}

type queue []*user

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].atMS != q[j].atMS {
		return q[i].atMS < q[j].atMS
	}
	return q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*user)) }
func (q *queue) Pop() any     { panic("workload: users never leave") }
