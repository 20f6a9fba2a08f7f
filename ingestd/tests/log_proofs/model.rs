//! Random actions against a simple model (see [`World`]).

use e2e::random::seeds;

use crate::support::world::World;

/// Seeds that once found a fault.
const REGRESSIONS: [u64; 2] = [10, 38];

fn round(seed: u64) {
    let mut world = World::new("model", seed);
    for _ in 0..world.random().within(10..=60) {
        match world.random().within(0..=99) {
            0..=36 => world.append(),
            37..=38 => world.begin_epoch(),
            39 => world.send_in_closed_epoch(),
            40..=54 => world.resend(),
            55..=59 => world.skip(),
            60..=66 => world.send_twice_at_once(),
            67..=74 => world.append_anonymous(),
            75..=81 => world.settle(),
            82..=87 => world.read(),
            88..=90 => world.close_and_reopen(),
            91..=93 => world.kill_and_reopen(),
            94..=96 => world.lose_power_and_reopen(),
            _ => {
                let operations = world.random().within(0..=40);
                world.lose_power_within(operations);
            }
        }
    }
    world.close_and_reopen();
    println!("model, LOG_SEED={seed}: as expected");
}

#[test]
fn random_actions_are_answered_and_stored_as_the_model_says() {
    for seed in REGRESSIONS.into_iter().chain(seeds(30)) {
        round(seed);
    }
}
