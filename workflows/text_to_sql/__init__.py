"""Text-to-SQL by agents over the OpenAI chat API.

A chain of four agents serves the generated databases and the small model that was trained on its prompts: link, write,
check, repair. Staged agents serve any model and any SQLite database: classify, extract, enrich, drafts with a vote,
combine, check, repair.
"""

from __future__ import annotations

from agentspec.workflows.text_to_sql.agents.chain import Answer, ChainConfig, answer_question, answer_questions
from agentspec.workflows.text_to_sql.agents.client import ChatModel, Completion, OpenAIChat
from agentspec.workflows.text_to_sql.agents.prompts import STAGES, Message, Stage
from agentspec.workflows.text_to_sql.agents.transcript import Call
from agentspec.workflows.text_to_sql.agents.workflow import WorkflowConfig
from agentspec.workflows.text_to_sql.generated.databases import Database, create_all
from agentspec.workflows.text_to_sql.generated.domains import DATABASES
from agentspec.workflows.text_to_sql.generated.questions import Question, draw_questions
from agentspec.workflows.text_to_sql.run import run_tasks
from agentspec.workflows.text_to_sql.sets.published import PublishedSet, read_set
from agentspec.workflows.text_to_sql.sql.score import OUTCOMES, Outcome
from agentspec.workflows.text_to_sql.sql.sources import Databases
from agentspec.workflows.text_to_sql.tasks import Task

__all__ = [
    "DATABASES", "OUTCOMES", "STAGES", "Answer", "Call", "ChainConfig", "ChatModel", "Completion", "Database",
    "Databases", "Message", "OpenAIChat", "Outcome", "PublishedSet", "Question", "Stage", "Task", "WorkflowConfig",
    "answer_question", "answer_questions", "create_all", "draw_questions", "read_set", "run_tasks",
]  # fmt: skip
