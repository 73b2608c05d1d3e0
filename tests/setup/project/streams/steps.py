from schemas.loan import Decision, Letter, Question, Wish
from state.limits import LIMITS
from topologies.texts import letter


def prepare(wish: Wish) -> Question:
    return Question(name=wish.name, amount=wish.amount, limit=LIMITS[wish.name])


def write(decision: Decision) -> Letter:
    return Letter(text=letter(decision.name, yes=decision.yes))
