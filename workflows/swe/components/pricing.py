"""Pricing: fees in steps, discounts, and shares of a sum."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component

_SOURCE = '''"""What ${entities} cost, in cents."""

STEPS = ((100, 5), (50, 7), (10, 9), (0, 12))
"""From how many on, and the price of each in cents; the largest number comes first."""


def unit_price(count):
    """The price of each when `count` are taken: the first step that `count` reaches."""
    if count < 1:
        raise ValueError(f"one ${entity} at least must be taken, got {count}")
    for least, price in STEPS:
        if count >= least:
            return price
    raise AssertionError("the last step is zero")


def total_price(count, discount=0):
    """The price of `count` in cents, less `discount` per cent, rounded half up."""
    if not 0 <= discount <= 100:
        raise ValueError(f"the discount must be from 0 to 100 per cent, got {discount}")
    full = unit_price(count) * count
    return (full * (100 - discount) + 50) // 100


def split(total, parts):
    """`total` cents in `parts` shares that differ by a cent at most, the larger ones first."""
    if parts < 1:
        raise ValueError(f"there must be one share at least, got {parts}")
    share, rest = divmod(total, parts)
    return [share + 1] * rest + [share] * (parts - rest)


def invoice(counts, discount=0):
    """Lines of (name, cents) for a dict of counts by name, sorted by name, and the sum of them."""
    lines = [(name, total_price(count, discount)) for name, count in sorted(counts.items())]
    return lines, sum(cents for _, cents in lines)
'''

_VISIBLE = """import unittest

from ${package}.pricing import invoice, split, total_price, unit_price


class PricingTest(unittest.TestCase):
    def test_steps(self):
        self.assertEqual([unit_price(n) for n in (1, 30, 70, 500)], [12, 9, 7, 5])

    def test_total(self):
        self.assertEqual(total_price(4), 48)

    def test_split_without_rest(self):
        self.assertEqual(split(90, 3), [30, 30, 30])

    def test_invoice(self):
        self.assertEqual(invoice({"one": 1}), ([("one", 12)], 12))


if __name__ == "__main__":
    unittest.main()
"""

_HIDDEN = """import unittest

from ${package}.pricing import invoice, split, total_price, unit_price


class HiddenPricingTest(unittest.TestCase):
    def test_steps_begin_at_their_number(self):
        self.assertEqual([unit_price(n) for n in (9, 10, 49, 50, 99, 100)], [12, 9, 9, 7, 7, 5])

    def test_discount_is_rounded_half_up(self):
        self.assertEqual(total_price(1, 50), 6)
        self.assertEqual(total_price(3, 12), 32)
        self.assertEqual(total_price(10, 25), 68)

    def test_split_adds_up(self):
        self.assertEqual(split(100, 3), [34, 33, 33])
        for total in range(20):
            for parts in range(1, 7):
                self.assertEqual(sum(split(total, parts)), total)

    def test_invoice_with_a_discount(self):
        self.assertEqual(invoice({"two": 2, "one": 1}, 50), ([("one", 6), ("two", 12)], 18))
"""

PRICING = Component(
    name="pricing",
    purpose="what ${entities} cost, in cents",
    source=_SOURCE,
    visible=_VISIBLE,
    hidden=_HIDDEN,
    bugs=(
        Bug(
            name="step",
            kind="wrong operator",
            function="unit_price",
            right="if count >= least:",
            wrong="if count > least:",
            title="Price steps begin one too late",
            symptom="Our price list says that ten ${entities} cost 9 cents each. For exactly ten, 12 cents are charged; "
            "from eleven on it is right.",
            reproduce="from ${package}.pricing import unit_price\n\nprint(unit_price(10), unit_price(11))",
            expected="9 9",
        ),
        Bug(
            name="rounding",
            kind="off by one",
            function="total_price",
            right="return (full * (100 - discount) + 50) // 100",
            wrong="return (full * (100 - discount)) // 100",
            title="Discounted prices are a cent too low",
            symptom="With a discount, prices of which half a cent or more is left should be rounded up. They are rounded "
            "down, always.",
            reproduce="from ${package}.pricing import total_price\n\nprint(total_price(10, 25))",
            expected="68",
        ),
        Bug(
            name="rest",
            kind="missed edge case",
            function="split",
            right="return [share + 1] * rest + [share] * (parts - rest)",
            wrong="return [share] * parts",
            title="Shares do not add up to the total",
            symptom="A hundred cents in three shares make 99 cents. Whoever pays the bill is missing a cent.",
            reproduce="from ${package}.pricing import split\n\nprint(split(100, 3))",
            expected="[34, 33, 33]",
        ),
        Bug(
            name="discount",
            kind="missing argument",
            function="invoice",
            right="lines = [(name, total_price(count, discount)) for name, count in sorted(counts.items())]",
            wrong="lines = [(name, total_price(count)) for name, count in sorted(counts.items())]",
            title="invoice() charges the full price in spite of a discount",
            symptom="The discount that is given to invoice() changes nothing, whatever it is.",
            reproduce='from ${package}.pricing import invoice\n\nprint(invoice({"one": 1, "two": 2}, 50))',
            expected="([('one', 6), ('two', 12)], 18)",
        ),
    ),
)
