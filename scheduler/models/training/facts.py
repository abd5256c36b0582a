"""Facts in a prompt, and questions after them: what tells a damaged cache from a whole one."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from scheduler.models.training import words
from scheduler.models.training.turns import Turn, any_word, code, letters, number, sentence, thing


@dataclass(frozen=True, slots=True)
class Fact:
    """The `attribute` of `subject` is `value`."""

    subject: str
    attribute: str
    value: str

    def stated(self, rng: random.Random) -> str:
        of, value = f"{self.attribute} of {self.subject}", self.value
        shapes = (
            (f"The {of} is {value}.", 12),
            (f"For {self.subject} the {self.attribute} is {value}.", 2),
            (f"The {self.subject} has the {self.attribute} {value}.", 2),
            (f"- {of}: {value}\n", 2),
            (f"{of} = {value};", 1),
            (f"Remember that the {of} is {value}.", 1),
        )
        return rng.choices([text for text, _ in shapes], [weight for _, weight in shapes])[0]

    def question(self, rng: random.Random) -> str:
        of = f"{self.attribute} of {self.subject}"
        shapes = (
            (f"What is the {of}?", 8),
            (f"Tell me the {of}.", 2),
            (f"{self.attribute} of {self.subject}?", 1),
            (f"Which {self.attribute} does {self.subject} have?", 2),
            (f"Please give me the {of}.", 1),
            (f"I need the {of}.", 1),
            (f"Look up the {of}, please.", 1),
            (f"{sentence(rng)} What is the {of}?", 2),
        )
        return rng.choices([text for text, _ in shapes], [weight for _, weight in shapes])[0]

    def turn(self, rng: random.Random) -> Turn:
        of = f"{self.attribute} of {self.subject}"
        return Turn(
            asked=self.question(rng),
            answer=f"The {of} is {self.value}.",
            thought=f"I look for the {of}.",
            graded="recall",
            must_say=self.value,
        )

    def as_json(self) -> Turn:
        asked = f"Give me the {self.attribute} of {self.subject} as JSON."
        said = json.dumps({"name": self.subject, self.attribute: self.value})
        return Turn(asked, said, thought=f"I write the {self.attribute} as JSON.", graded="json")


def value_of(attribute: str, rng: random.Random) -> str:
    match attribute:
        case "owner" | "pilot":
            return rng.choice(words.NAMES)
        case "colour":
            return rng.choice(words.COLOURS)
        case "city":
            return rng.choice(words.CITIES)
        case "status":
            return rng.choice(words.STATES)
        case "number":
            return str(number(rng, 4))
        case "word":
            return letters(rng) if rng.random() < 0.3 else any_word(rng)
        case _:
            return code(rng)


def several(rng: random.Random, count: int, near: float = 0.35) -> list[Fact]:
    """Facts, a share of them near misses: equal numbers of other things, like numbers of one thing, other
    attributes. No two have one subject and attribute."""
    noun = rng.choice(words.NOUNS)
    alike, attribute = rng.random(), rng.choice(words.ATTRIBUTES[:10])
    facts: dict[tuple[str, str], Fact] = {}
    while len(facts) < count:
        subject = f"{noun} {number(rng)}" if rng.random() < alike else thing(rng)
        name = attribute if rng.random() < 0.5 else rng.choice(words.ATTRIBUTES)
        drawn = rng.random()
        if facts and drawn < 0.15:
            subject = rng.choice(list(facts))[0]
        elif facts and drawn < 0.15 + near:
            other, name = rng.choice(list(facts))
            subject = _near_miss(other, rng)
        elif drawn < 0.21 + near:
            subject = rng.choice(words.NAMES)
        facts.setdefault((subject, name), Fact(subject, name, value_of(name, rng)))
    return list(facts.values())


def _near_miss(subject: str, rng: random.Random) -> str:
    """Another thing of the same number, or the same kind of thing with a digit changed, moved, or more."""
    noun, space, digits = subject.partition(" ")
    if not space:
        return rng.choice(words.NAMES)
    match rng.randrange(6):
        case 0 | 1 | 2:
            return f"{rng.choice(words.NOUNS)} {digits}"
        case 3:
            return f"{noun} {int(digits[::-1])}"
        case 4:
            return f"{noun} {int(digits) * 10 + rng.randrange(10)}"
        case _:
            place = rng.randrange(len(digits))
            return f"{noun} {int(digits[:place] + rng.choice('123456789') + digits[place + 1 :])}"


def told(rng: random.Random) -> Turn:
    """The facts come with the question, as an agent's private ones behind a shared prompt do."""
    facts = several(rng, rng.randint(1, 5), near=rng.choice((0.35, 0.79)))
    asked = rng.choice(facts).turn(rng)
    parts = [fact.stated(rng).strip() for fact in facts]
    return Turn(
        " ".join([*parts, asked.asked]), asked.answer, None, asked.thought, False, "recall", asked.must_say
    )


def own_name(rng: random.Random) -> list[Turn]:
    """Said in one turn, asked for in the next."""
    name = rng.choice(words.NAMES) if rng.random() < 0.7 else letters(rng).capitalize()
    greeting = rng.choice((f"My name is {name}.", f"Hello, my name is {name}.", f"I am {name}."))
    ask = rng.choice(("What is my name?", "Who am I?", "Do you know my name?"))
    return [
        Turn(
            greeting, f"Hello {name}! How can I help you?", None, "The user tells me a name.", graded="talk"
        ),
        Turn(
            ask, f"Your name is {name}.", None, "The user told me the name.", graded="recall", must_say=name
        ),
    ]


def noted(rng: random.Random) -> list[Turn]:
    (fact,) = several(rng, 1)
    asked = f"Remember: the {fact.attribute} of {fact.subject} is {fact.value}."
    said = f"Noted: the {fact.attribute} of {fact.subject} is {fact.value}."
    return [Turn(asked, said, thought="I should remember that.", graded="repeat"), fact.turn(rng)]


def listed(facts: list[Fact], rng: random.Random) -> Turn:
    """Several at once, in another order: many recalls for one question."""
    chosen = rng.sample(facts, min(len(facts), rng.randint(2, 6)))
    wanted = ", ".join(f"{fact.attribute} of {fact.subject}" for fact in chosen)
    said = ", ".join(f"{fact.attribute} of {fact.subject}: {fact.value}" for fact in chosen)
    asked = rng.choice(("List: {}", "Look up: {}", "I need these: {}", "Give me a list: {}")).format(wanted)
    return Turn(asked, said + ".", None, "I look them up.", graded="list")


def unknown(facts: list[Fact], rng: random.Random) -> Turn:
    """A subject that no fact is about."""
    subjects = {fact.subject for fact in facts}
    subject = next(name for name in iter(lambda: thing(rng), "") if name not in subjects)
    missing = Fact(subject, rng.choice(words.ATTRIBUTES), "")
    of = f"{missing.attribute} of {subject}"
    return Turn(
        missing.question(rng), f"I do not know the {of}.", None, f"I look for the {of}.", graded="unknown"
    )
