"""Text-to-SQL by a chain of agents over the OpenAI chat API: link, write, check, repair."""

from __future__ import annotations

from agentspec.workflows.text_to_sql.chain import (
    OUTCOMES,
    Answer,
    ChainConfig,
    Outcome,
    answer_question,
    answer_questions,
)
from agentspec.workflows.text_to_sql.client import ChatModel, Completion, OpenAIChat
from agentspec.workflows.text_to_sql.databases import Database, create_all
from agentspec.workflows.text_to_sql.domains import DATABASES
from agentspec.workflows.text_to_sql.prompts import STAGES, Message, Stage
from agentspec.workflows.text_to_sql.questions import Question, draw_questions
from agentspec.workflows.text_to_sql.transcript import Call

__all__ = [
    "DATABASES",
    "OUTCOMES",
    "STAGES",
    "Answer",
    "Call",
    "ChainConfig",
    "ChatModel",
    "Completion",
    "Database",
    "Message",
    "OpenAIChat",
    "Outcome",
    "Question",
    "Stage",
    "answer_question",
    "answer_questions",
    "create_all",
    "draw_questions",
]
