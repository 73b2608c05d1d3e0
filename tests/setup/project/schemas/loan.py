from pydantic import BaseModel


class Wish(BaseModel):
    name: str
    amount: int


class Question(BaseModel):
    name: str
    amount: int
    limit: int


class Word(BaseModel):
    yes: bool


class Decision(BaseModel):
    name: str
    yes: bool


class Letter(BaseModel):
    text: str
