//! Memory use of a run: an allocator that counts for each thread separately.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    // Constant values without a destructor: the allocator may use them at any time of a thread's life.
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

// SAFETY: every call passes unchanged to the system's allocator; counting allocates no memory.
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
        // Both sizes count at once, as if the block had to be moved.
        add(size);
        take(layout.size());
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Returns the maximum bytes that this thread held at once during `work`, beyond those held before.
pub fn most_held(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    work();
    MOST.get().saturating_sub(before).unsigned_abs()
}

/// Runs `work` without counting, because oracles reserve memory freely. Memory that stays allocated counts.
pub fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let most = MOST.get();
    let done = work();
    MOST.set(most.max(HELD.get()));
    done
}
