//! How much memory a run asks for: an allocator that counts, for each thread by itself.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    // Constant, and nothing to drop: so the allocator may use them at any time of a thread's life.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn add(bytes: usize) {
    let held = HELD.get().saturating_add_unsigned(bytes);
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

fn take(bytes: usize) {
    HELD.set(HELD.get().saturating_sub_unsigned(bytes));
}

// SAFETY: every call goes to the system's allocator as it is; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        take(layout.size());
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both at once, as when it has to be moved.
        add(size);
        take(layout.size());
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The most bytes that this thread held at once during `work`, beyond what it held before.
pub fn most_held(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    work();
    MOST.get().saturating_sub(before).unsigned_abs()
}

/// Does what is not to be counted: oracles reserve memory as they please. What is left of it afterwards counts.
pub fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let most = MOST.get();
    let done = work();
    MOST.set(most.max(HELD.get()));
    done
}
