from kawait import Completion, Projector
from schemas.loan import Decision, Question, Word


class Desk(Projector):
    def project(self, request: Question, completion: Word, metadata: Completion, /) -> Decision:
        del metadata
        return Decision(name=request.name, yes=completion.yes and request.amount <= request.limit)
