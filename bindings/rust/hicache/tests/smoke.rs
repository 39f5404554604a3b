//! The main verbs on the CPU backend: pages go to the host tier and come back elsewhere with the same bytes.
use hicache::*;
use std::time::Duration;

const FULL: u32 = 0;
const SWA: u32 = 1;
const PAGES: usize = 4;

fn options() -> Options {
    let pool = |role, window_tokens, layer_ids: &[u32]| Pool {
        role,
        page_tokens: 4,
        window_tokens,
        layer_ids: layer_ids.to_vec(),
        k_row_bytes: 32,
        v_row_bytes: 32,
    };
    Options::new(Backend::Cpu, 64 << 10, 64 << 10, vec![pool(Role::Full, 0, &[0, 2]), pool(Role::Swa, 8, &[1, 3])])
}

fn open() -> Engine {
    Engine::open(&options()).unwrap_or_else(|error| panic!("these tests need the library (make lib): {error}"))
}

fn stamp(pool: u32, page: usize, at: usize) -> u8 {
    (pool as usize * 131 + page * 31 + at * 7 + at / 256) as u8
}

/// The bytes of a held page, found through its kernel id as a kernel would.
fn bytes(engine: &Engine, lease: &Lease, pool: u32, page: VirtualPage) -> *mut [u8] {
    let mut id = [KernelId(0)];
    assert_eq!(lease.kernel_ids(pool, Granularity::Page, &[page], &mut id).unwrap(), 0, "{page:?} is not mapped");
    let info = engine.pool_info(sys::HICACHE_TIER_DEVICE, pool).unwrap();
    let place = (id[0].0 as u64 - info.kernel_page_offset) / info.kernel_page_scale;
    let mut places = [PhysicalPage(0)];
    lease.places(pool, &[page], &mut places).unwrap();
    assert_eq!(u64::from(places[0].0), place);
    engine.device_page(pool, places[0]).unwrap()
}

fn drain(engine: &Engine, ticket: Ticket) {
    let mut ring = [Completion::default(); 8];
    loop {
        let count = engine.wait(Duration::from_secs(10), &mut ring).unwrap();
        assert!(count > 0, "no completion in 10 s");
        for completion in &ring[..count] {
            assert_eq!(completion.status, sys::HICACHE_OK);
            if completion.ticket == ticket.0 {
                return;
            }
        }
    }
}

#[test]
fn round_trip() {
    let engine = open();
    let mut pages = [VirtualPage(0); PAGES];
    engine.alloc(&mut [Take::New { pool: FULL, pages: &mut pages }, Take::WindowOfNew { pool: SWA, count: PAGES as u32 }]).unwrap();
    let both = |pages| [Pages { pool: FULL, pages }, Pages { pool: SWA, pages }];
    let lease = engine.lease(&both(&pages)).unwrap();
    for pool in [FULL, SWA] {
        for (i, &page) in pages.iter().enumerate() {
            // SAFETY: leased, and nothing else touches the page.
            let page = unsafe { &mut *bytes(&engine, &lease, pool, page) };
            for (at, byte) in page.iter_mut().enumerate() {
                *byte = stamp(pool, i, at);
            }
        }
    }
    lease.release().unwrap();

    let mut host = [[HostPage(0); PAGES]; 2];
    for pool in [FULL, SWA] {
        engine.host_alloc(pool, &mut host[pool as usize]).unwrap();
    }
    let copies = |pages: &[VirtualPage]| -> Vec<Copy> {
        [FULL, SWA]
            .iter()
            .flat_map(|&pool| (0..PAGES).map(move |i| (pool, i)))
            .map(|(pool, i)| Copy::new(pool, pages[i], host[pool as usize][i]))
            .collect()
    };
    let ticket = engine.back_up(&Transfer { copies: &copies(&pages), priority: sys::HICACHE_CLASS_NORMAL, ..Default::default() }).unwrap();
    drain(&engine, ticket);
    for pool in [FULL, SWA] {
        // SAFETY: nothing else touches these host pages now.
        let view = unsafe { engine.host_view(pool, &host[pool as usize]) }.unwrap();
        for i in 0..PAGES {
            assert!(view.page(i).unwrap().iter().enumerate().all(|(at, &byte)| byte == stamp(pool, i, at)), "host page {i} of pool {pool}");
        }
    }
    engine.free(&[Pages { pool: FULL, pages: &pages }]).unwrap();
    assert!(matches!(engine.free(&[Pages { pool: FULL, pages: &pages }]), Err(Error::StaleId(_))));

    // Something else takes the old places and writes over them.
    let mut other = [VirtualPage(0); 2];
    engine.alloc(&mut [Take::New { pool: FULL, pages: &mut other }, Take::WindowOfNew { pool: SWA, count: 2 }]).unwrap();

    let mut back = [VirtualPage(0); PAGES];
    let reservation =
        engine.reserve(&mut [Take::New { pool: FULL, pages: &mut back }, Take::WindowOfNew { pool: SWA, count: PAGES as u32 }]).unwrap();
    let ticket = reservation.load(&Transfer { copies: &copies(&back), ..Default::default() }).unwrap().expect("a ticket");
    for layer in 0..4 {
        engine.layer_wait(ticket, layer, 0).unwrap();
    }
    drain(&engine, ticket);
    let lease = engine.lease(&both(&back)).unwrap();
    for pool in [FULL, SWA] {
        for (i, &page) in back.iter().enumerate() {
            // SAFETY: leased, and nothing else touches the page.
            let page = unsafe { &*bytes(&engine, &lease, pool, page) };
            assert!(page.iter().enumerate().all(|(at, &byte)| byte == stamp(pool, i, at)), "page {i} of pool {pool} came back wrong");
        }
    }
    drop(lease);
    engine.compact().unwrap();
    engine.verify().unwrap();
    let stats = engine.stats().unwrap();
    assert_eq!((stats.loads, stats.back_ups, stats.leases), (1, 1, 0));
    engine.close().unwrap();
}

#[test]
fn guards_give_back() {
    let engine = open();
    let before = engine.stats().unwrap();
    let mut pages = [VirtualPage(0); 2];
    drop(engine.reserve(&mut [Take::New { pool: FULL, pages: &mut pages }]).unwrap());
    engine.alloc(&mut [Take::New { pool: FULL, pages: &mut pages }]).unwrap();
    {
        let _lease = engine.lease(&[Pages { pool: FULL, pages: &pages }]).unwrap();
        let _step = engine.step(0, &[Pages { pool: FULL, pages: &pages }]).unwrap();
        let stats = engine.stats().unwrap();
        assert_eq!((stats.leases, stats.steps), (before.leases + 1, before.steps + 1));
    }
    let stats = engine.stats().unwrap();
    assert_eq!((stats.leases, stats.steps, stats.cancels), (before.leases, before.steps, before.cancels + 1));

    // A refused load keeps its reservation.
    let reservation = engine.reserve(&mut [Take::New { pool: FULL, pages: &mut pages }]).unwrap();
    let bad = [Bind::new(FULL, VirtualPage(1_000_000))];
    let LoadRefused { reservation, error } =
        reservation.load(&Transfer { binds: &bad, ..Default::default() }).expect_err("an unknown page was bound");
    assert!(matches!(error, Error::StaleId(_) | Error::InvalidArgument(_)), "{error}");
    reservation.cancel().unwrap();
    engine.verify().unwrap();
    engine.close().unwrap();
}

#[test]
fn errors() {
    let mut wrong = options();
    wrong.pools[1].k_row_bytes = 8;
    match Engine::open(&wrong) {
        Err(Error::InvalidArgument(detail)) => assert!(detail.message.contains("k_row_bytes"), "{}", detail.message),
        other => panic!("a row of 8 bytes: {:?}", other.err()),
    }
    let engine = open();
    let mut many = vec![VirtualPage(0); 100_000];
    match engine.alloc(&mut [Take::New { pool: FULL, pages: &mut many }]) {
        Err(Error::NoCapacity(detail)) => assert!(detail.need_bytes > detail.have_bytes, "{detail:?}"),
        other => panic!("100,000 pages: {other:?}"),
    }
    assert!(matches!(engine.fits(&[(FULL, 100_000)]), Err(Error::NoCapacity(_))));
    engine.fits(&[(FULL, 1), (SWA, 1)]).unwrap();
    assert!(matches!(engine.layer_wait(Ticket(12345), 0, 0), Err(Error::StaleId(_))));
}

#[test]
fn map_shows_live_and_pinned_pages() {
    let engine = open();
    let mut pages = [VirtualPage(0); 3];
    engine.alloc(&mut [Take::New { pool: FULL, pages: &mut pages }]).unwrap();
    let lease = engine.lease(&[Pages { pool: FULL, pages: &pages[..1] }]).unwrap();
    let states = engine.map(sys::HICACHE_TIER_DEVICE, FULL).unwrap();
    let count = |state: u8| states.iter().filter(|&&is| is == state).count();
    assert_eq!((count(sys::HICACHE_PAGE_LIVE | sys::HICACHE_PAGE_PINNED), count(sys::HICACHE_PAGE_LIVE)), (1, 2));
    drop(lease);
    engine.free(&[Pages { pool: FULL, pages: &pages }]).unwrap();
}
