"""A table of all learners: their memory, their cost, and what is proved of them."""

from collections.abc import Iterable
from typing import Any, NamedTuple


class Card(NamedTuple):
    """A learner in brief; T is the rounds so far, G the levels of a grid and N the beliefs that are mixed."""

    name: str  # in :mod:`dpconformal`
    memory: str  # what a state keeps
    round: str  # work that one round adds, for all levels of the grid, or for the evidence
    levels: str  # "any": one distribution answers every level; "grid": a copy for each level of its own grid
    monotone: bool  # whether thresholds of different levels can never cross
    guarantee: str  # what is proved
    assumption: str  # on the scores, beyond their range
    reference: str  # who proved it


_YES = {True: "yes", False: "no"}


class Catalogue(tuple[Card, ...]):
    """Cards that print as a table; in a notebook, and by :meth:`markdown`, with all that is known of each learner."""

    __slots__ = ()

    def __repr__(self) -> str:
        rows = [("learner", "levels", "monotone", "memory", "a round", "guarantee")]
        rows += [(c.name, c.levels, _YES[c.monotone], c.memory, c.round, c.guarantee) for c in self]
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        lines = ["  ".join([*map(str.ljust, row[:5], widths), row[5]]) for row in rows]
        return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])

    def markdown(self) -> str:
        """Write two tables in Markdown: what each learner keeps and costs, and what it promises."""
        costs = [("learner", "memory", "work a round", "levels", "monotone"), ("---",) * 5]
        costs += [(f"`{c.name}`", c.memory, c.round, c.levels, _YES[c.monotone]) for c in self]
        promises = [("learner", "guarantee", "assumption", "reference"), ("---",) * 4]
        promises += [(f"`{c.name}`", c.guarantee, c.assumption, c.reference) for c in self]
        tables = ("\n".join("| " + " | ".join(row) + " |" for row in table) for table in (costs, promises))
        return "\n\n".join(tables) + "\n"

    _repr_markdown_ = markdown

    def __getitem__(self, key: Any) -> Any:
        """Return a card by its place or by its name."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        cards = {card.name: card for card in self}
        if key not in cards:
            raise KeyError(f"{key!r}: the learners are {', '.join(cards)}")
        return cards[key]


def learners() -> Catalogue:
    """
    List every learner: what it keeps in memory, what a round costs, what is guaranteed and under which assumption.

    Returns
    -------
    Catalogue
        A tuple of :class:`Card`, which prints as a table.

    Examples
    --------
    >>> learners()["ACI"].memory
    'window + G'
    >>> [card.name for card in learners() if card.monotone]
    ['Exact', 'Quantized', 'Aggregate', 'Hierarchical', 'ERM', 'SlidingERM', 'DiscountedERM', 'SplitConformal', 'NExCP']
    """
    return _LEARNERS


# Three lines a learner: name, memory and work of a round; guarantee; assumption and reference.
_BELIEFS = """
Exact | T scores | O(T); O(log T) in a replay
  regret O(R√T) at every level; coverage probability right up to O(1/√t); discounted regret O(R/√(1-β))
  none for regret; iid for coverage | Zhang, Lu & Yang (2024)
Quantized | bins | O(bins); O(1) in a replay
  as Exact, plus O(R·T/bins) regret; coverage at least that of Exact, by thresholds within a bin above it
  none for regret; iid for coverage | Zhang, Lu & Yang (2024)
Aggregate | N beliefs + N · cells | O(N · cells), and what the N beliefs cost
  total CRPS within ln N · R/2 of the best of N beliefs, up to the width of cells
  none | V'yugin & Trunov (2019); Herbster & Warmuth (1998)
Hierarchical | T scores; or groups · bins | O(T · depth); or O(bins · depth)
  in every group: coverage probability within the group's own finite-sample bracket; a bound on its regret
  none for regret; exchangeable within the group for coverage | Teh, Jordan, Beal & Blei (2006)
ERM | T scores | O(T); O(log T) in a replay
  excess risk O(1/√T); coverage right up to O(1/T)
  iid; linear regret without | Vapnik (1998)
SlidingERM | window | O(window)
  coverage right up to O(1/window)
  iid within the window | folklore
DiscountedERM | T scores | O(T); O(log T) in a replay
  none on a fixed sequence
  slow drift | folklore
SplitConformal | T scores | O(T); O(log T) in a replay
  coverage probability ≥ level, exactly, in finite samples
  exchangeable | Vovk, Gammerman & Shafer (2005)
NExCP | T scores | O(T); O(log T) in a replay
  coverage probability ≥ level - weighted total variation of swaps
  none; nothing is lost if exchangeable | Barber, Candès, Ramdas & Tibshirani (2023)
"""
_GRIDS = """
OGD | G | O(G)
  regret O(R√T); coverage frequency within (1 + η_1)/(η_T·T) of the level for rates that do not grow
  none | Gibbs & Candès (2021); Angelopoulos, Barber & Bates (2024)
SFOGD | G | O(G)
  anytime regret O(R√T); coverage frequency within O(T^(-1/4) log T)
  none | Bhatnagar, Wang, Xiong & Bai (2023)
SAOCP | G · lifetime · log T | O(G · lifetime · log T)
  regret Õ(R√k) on every stretch of k rounds
  none | Bhatnagar, Wang, Xiong & Bai (2023)
ACI | window + G | O(window + G)
  coverage frequency within (1 + γ)/(γT) of the level
  no score at the lower end, or outside="infinite" | Gibbs & Candès (2021)
DtACI | window + G·K | O(window + G·K)
  dynamic regret of levels, on every stretch of `horizon` rounds
  none | Gibbs & Candès (2024)
AgACI | window + G·K | O(window + G·K)
  loss close to the best mixture of K ACI, O(√(T ln K)), for a close relative
  none | Zaffran et al. (2022)
PID | G + window | O(G + window)
  coverage frequency within πC/(2 ln T) + 4/T of the level, with I
  no score at the lower end, or outside="infinite" | Angelopoulos, Candès & Tibshirani (2023)
MVP | G · groups · buckets | O(G · groups · buckets)
  coverage frequency approaches the level within every bucket of every group
  no mass just below a bucket's edge, nor at the lower end | Bastani et al. (2022)
"""


def _cards(text: str, levels: str, monotone: bool) -> Iterable[Card]:
    """Read cards of learners that answer the same levels."""
    lines = text.strip().splitlines()
    for first, guarantee, last in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        (name, memory, work), (assumption, reference) = first.split(" | "), last.strip().split(" | ")
        yield Card(name, memory, work, levels, monotone, guarantee.strip(), assumption, reference)


_LEARNERS = Catalogue((*_cards(_BELIEFS, "any", True), *_cards(_GRIDS, "grid", False)))
