"""Numbers as people would write them into a recipe."""

from decimal import ROUND_UP, Context


def two_digits(number: float, *, least: int) -> int:
    """`number` with two digits that are not 0; at least `least`."""
    return max(int(float(f"{number:.2g}")), least)


def plain(number: float) -> str:
    """`number` rounded up to two digits that are not 0, without an exponent."""
    return f"{Context(prec=2, rounding=ROUND_UP).create_decimal_from_float(number).normalize():f}"


def one_two_five(number: float) -> int:
    """The largest of 100, 200, 500, 1000 … that is not above `number`; at least 100."""
    power: int = 10 ** (len(str(int(max(number, 100)))) - 1)
    return power * max(digit for digit in (1, 2, 5) if digit * power <= max(number, 100))
