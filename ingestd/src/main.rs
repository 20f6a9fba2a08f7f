//! The daemon's program; everything is in the library.

/// Events are allocated by request threads and freed by writers. The C library's allocator gives each thread an arena and
/// keeps what another one freed there: its memory grows for minutes (docs/BENCHMARKS.md).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    ingestd::command::main()
}
