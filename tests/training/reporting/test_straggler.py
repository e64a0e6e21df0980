from mjtrain.training.reporting.console import STEADY_ITERATIONS, StragglerWatch


def row(*busy_s: float) -> dict:
    return {"slowest_rank": busy_s.index(max(busy_s)), "busy_time_by_rank_s": list(busy_s)}


def test_a_steadily_slow_rank_is_named_once() -> None:
    watch = StragglerWatch()
    lines = [watch.update(row(1.0, 1.0, 1.5, 1.1)) for _ in range(3 * STEADY_ITERATIONS)]
    said = [line for line in lines if line is not None]
    assert lines.index(said[0]) == STEADY_ITERATIONS - 1
    assert said == [
        "rank 2 is steadily slower than the others: 1.500 s of work per iteration against 1.000 s; they wait for it"
    ]


def test_a_moment_of_slowness_is_no_news() -> None:
    watch = StragglerWatch()
    for _ in range(5):
        assert all(watch.update(row(1.0, 1.5)) is None for _ in range(STEADY_ITERATIONS - 1))
        assert watch.update(row(1.0, 1.1)) is None


def test_slow_in_turn_is_not_steady() -> None:
    watch = StragglerWatch()
    for _ in range(4 * STEADY_ITERATIONS):
        assert watch.update(row(1.0, 1.5)) is None
        assert watch.update(row(1.5, 1.0)) is None


def test_one_rank_has_nobody_to_wait_for() -> None:
    assert StragglerWatch().update({"collect_time_s": 1.0}) is None
