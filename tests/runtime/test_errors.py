"""Numbers in messages."""

from mjtrain.runtime.errors import count


def test_one_of_something_is_singular() -> None:
    assert [count(number, "env step") for number in (0, 1, 6144)] == ["0 env steps", "1 env step", "6,144 env steps"]
    assert [count(number, "body", "bodies") for number in (1, 2)] == ["1 body", "2 bodies"]
