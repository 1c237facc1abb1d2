"""Values that look real and are made up, put together when the tests run: no file holds anything like a key."""

import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data"

ALPHABETS = {
    "alnum": string.ascii_letters + string.digits,
    "word": string.ascii_letters + string.digits + "_-",
    "base64": string.ascii_letters + string.digits + "+/",
    "base32": string.ascii_uppercase + "234567",
    "capitals": string.ascii_uppercase + string.digits,
    "hex": "0123456789abcdef",
    "digits": string.digits,
}


def load(name: str) -> Any:
    return yaml.safe_load((DATA / name).read_text(encoding="utf-8"))


def build(form: list[Any], seed: int = 7) -> str:
    """Join literal parts and runs of an alphabet; each run begins and ends with a letter or digit of it."""
    chance = random.Random(seed)
    parts = []
    for part in form:
        if isinstance(part, str):
            parts.append(part)
            continue
        ((alphabet, length),) = part.items()
        letters = ALPHABETS[alphabet]
        plain = "".join(char for char in letters if char.isalnum())
        run = [chance.choice(plain), *(chance.choice(letters) for _ in range(length - 2)), chance.choice(plain)]
        parts.append("".join(run[:length]))
    return "".join(parts)


def with_check_digit(digits: str) -> str:
    """Return digits with Luhn's check digit behind them, by the definition: doubled digits from the right."""
    total = 0
    for index, char in enumerate(reversed(digits)):
        value = int(char) * (2 if index % 2 == 0 else 1)
        total += value // 10 + value % 10
    return f"{digits}{(10 - total % 10) % 10}"


def card(prefix: str, length: int, groups: list[int], separator: str = " ", seed: int = 7) -> str:
    chance = random.Random(seed)
    number = with_check_digit(prefix + "".join(chance.choice(string.digits) for _ in range(length - len(prefix) - 1)))
    return separator.join(_grouped(number, groups)) if groups else number


def _grouped(text: str, groups: list[int]) -> Iterator[str]:
    start = 0
    for size in groups:
        yield text[start : start + size]
        start += size


def iban(country: str, rest: str) -> str:
    """Return an IBAN with its two check digits: what makes the remainder 1, digit by digit."""
    remainder = 0
    for char in f"{rest}{country}00":
        for digit in str(int(char, 36)):
            remainder = (remainder * 10 + int(digit)) % 97
    return f"{country}{98 - remainder:02d}{rest}"
