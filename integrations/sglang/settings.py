"""The settings of the plugin as one pydantic model, from which the configuration of each part is made.

setting_sources.py reads settings from flags, environment variables and a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentspec.config import EngineConfig, parse_min_token_prob
from agentspec.errors import AgentspecError, ConfigError
from agentspec.estimates import Estimates
from agentspec.integrations.sglang.replay.setting import Unmatched, check_replay
from agentspec.integrations.sglang.tenants import check_namespace_field
from agentspec.integrations.sglang.widths.tiers import parse_widths
from agentspec.scheduling import ControlConfig, Profile, make_controller
from agentspec.scheduling.baselines.candidate_length import parse_threshold
from agentspec.scheduling.baselines.setting import Baseline, parse_baseline
from agentspec.scheduling.hybrid import HybridConfig, PauseRuleName, UnionUse, parse_tau
from agentspec.store.config import SharingConfig
from agentspec.store.urls import NOTHING_URL, place, redact

FLAG_PREFIX = "--agentspec-"
VARIABLE_PREFIX = "AGENTSPEC_"
FLAGS = (
    *("mode", "baseline", "base", "tau", "min_token_prob", "budget_mb", "estimates", "corpora", "profile"),
    *("store", "namespace_from"),
)
"""The settings that are also flags."""

# More threads than this are not faster, because they wait for memory.
_MOST_THREADS = 8


def _number_as_text(value: object) -> object:
    """YAML reads a bare 1 or .inf as a number."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value


Amount = Annotated[int, Field(ge=0)]
Duration = Annotated[float, Field(ge=0)]
NumberOrWord = Annotated[str, BeforeValidator(_number_as_text)]


class Measurements(BaseModel):
    """What only measurements and tests of agentspec need. Each field is an environment variable, and nothing else."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    replay: str = ""
    """The model writes recorded answers instead of its own. The value lists files or folders of
    recorded calls, separated by colons; `requests` lets each request bring its answer. The variable works with every
    speculative algorithm."""
    replay_unmatched: Unmatched = "refuse"
    """With `replay`: `refuse` refuses requests that have no recorded answer, `free` lets the model answer them."""
    profiling: bool = False
    """Pad every step to the controller's width and list the latest steps with their times in `/server_info`, for
    `agentspec profile`."""
    stream_order: Literal["auto", "off"] = "auto"
    """Whether drafts are made in the order of the device's work, so that the scheduler never waits for accepted tokens: `auto`
    wherever the device, its attention backend and the controller can; `off` never, to compare."""
    hybrid_union: UnionUse = "auto"
    """Whether a row that has a suffix draft and the draft model's verifies the union of both trees: `auto` unites them if
    `tau` is `auto`, `always` with any `tau`; `never` verifies one of them. A baseline that chooses between both drafts
    unites none."""


class Settings(Measurements):
    """What an operator may choose. A field's docstring is its help.

    Every field is an environment variable and a key of the settings file. The fields in FLAGS are also flags. Raises
    ConfigError if a name is unknown, or a value has the wrong type or is out of range.
    """

    mode: Literal["auto", "tree", "chain"] = "auto"
    """Shape of the drafts: `tree`, `chain`, or `auto`, which drafts trees where the attention backend can verify them."""
    baseline: str = ""
    """A published method in place of agentspec's own, as NAME[:key=value,...]: `suffixdecoding`, `score` or `match-length`
    for drafts; `smartspec`, `batch-table`, `roofline`, `fixed` or `sweep` for how much a step verifies. `+` joins two, such
    as `suffixdecoding:tau=4+fixed:length=15`. docs/configuration.md explains them. Empty uses none."""
    min_token_prob: NumberOrWord = "auto"
    """Tokens whose estimated probability of acceptance is lower are not drafted. `auto` is 0.16 divided by the most drafted
    tokens of a row, and at most 0.02."""
    budget_mb: Amount = 256
    """Memory for finished outputs of all namespaces together, in MiB; 0 keeps none."""
    conversation_mb: Amount = 128
    """Memory for the indexes of finished requests, in MiB; they are kept for the next turn of a conversation. 0 keeps
    none."""
    max_siblings: int = Field(default=8, ge=0, le=64)
    """A request drafts from the outputs of at most this number of running requests of its tenant while they grow: of
    those that name its `group`, or without a group those with its prompt. 0 drafts from finished outputs only."""
    num_threads: int = Field(default=0, ge=0, le=64)
    """Number of threads that share the drafting of batches of 8 rows or more; 0 uses one thread per core, at most 8."""
    estimates: str = ""
    """File that `agentspec tune` wrote; empty uses the estimates that come with agentspec."""
    corpora: str = ""
    """Files that `agentspec corpus build` wrote, separated by colons. All namespaces draft from them. The baseline
    `suffixdecoding` cannot."""
    store: str = Field(default="", repr=False)
    """Where finished outputs are kept and shared: `sqlite:///PATH`, `redis://HOST:PORT`, `rediss://`, `unix://`,
    `redis-sentinel://` or `redis-cluster://`; `memory://` keeps nothing. Empty uses SQLite in the user's data directory,
    if that is writable."""
    store_optional: bool = False
    """Start with a warning, instead of an error, if the store cannot be used."""
    store_model: str = ""
    """Name under which replicas share a model's outputs; empty uses the served model's name."""
    store_password_file: str = ""
    """File that holds the store's password."""
    store_key_file: str = ""
    """File that holds the key which encrypts stored outputs."""
    store_ttl_days: Duration = 30.0
    """Days until a stored output is forgotten; 0 keeps outputs for ever."""
    store_quota_mb: Amount = 256
    """Maximum size of the store's log of each namespace, in MiB; 0 sets no limit."""
    namespace_from: str = "auto"
    """Request field that names the tenant: `extra_key`, `cache_salt` or `custom_params.NAME`. `auto` uses `extra_key` and
    `cache_salt`, as the prefix cache does; `none` puts all requests into one namespace."""
    namespace_key_file: str = ""
    """File that holds the key which hides tenants' names in the store."""
    base: str = "auto"
    """Speculative algorithm of the draft model: `EAGLE`, `EAGLE3` or `STANDALONE`; `auto` reads it from the checkpoint.
    Without a draft model, `EAGLE` or `NEXTN` drafts with the target's own MTP layers."""
    tau: NumberOrWord = "auto"
    """With a draft model: a row gets its suffix draft if that promises more drafted tokens than this number, else the draft
    model's, as in SuffixDecoding, whose tau also counts the root and is greater by 1. `auto` compares both drafts and
    their costs. 0 never runs the draft model, `inf` always does."""
    acceptance_head: str = "auto"
    """Folder of a SpecDec++ head (`acceptance_head.safetensors`), which predicts whether the draft model's tokens are
    accepted. `auto` looks for it in the draft model's folder; `none` uses no head."""
    stop_threshold: NumberOrWord = "auto"
    """SpecDec++'s h: the draft of a row ends where the probability that one of its tokens is rejected exceeds this number.
    `head` takes the acceptance head's own h; `theorem` takes 1 - t_draft / t_target, by the times of `profile` or those that
    an earlier server kept (Theorem 3.1 with its constant 0); 1 drafts as many tokens as there are passes. `agentspec tune
    --draft-model` finds the best number. With `auto` a draft ends where another pass costs more than it promises. In
    captured graphs all passes run, and what a row drafts after its end is not verified."""
    widths: NumberOrWord = "auto"
    """On a GPU with CUDA graphs: the numbers of tokens per row for which graphs are captured, such as `1,2,4,8`. Steps are
    padded to the next one. `auto` captures 1, 2, 4, ... up to `--speculative-num-draft-tokens`; `one` captures only that
    number."""
    profile: str = ""
    """File that `agentspec profile` wrote for this model on this device; empty learns costs from the steps themselves."""
    keep_step_times: bool = True
    """Keep the step times that the server learns in a file beside the store, and start from them after a restart. Nothing
    is kept with `profile`, or if the store is `memory://`."""
    admin_corpora_mb: Amount = 1024
    """Memory for all corpora added over HTTP together, in MiB; 0 refuses them."""
    admin_folder: str = ""
    """Folder below which files of the server's machine may be added as corpora over HTTP; empty permits none."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Pydantic's message would show the values, and the store's URL may contain a password.
            raise ConfigError("\n".join(map(_problem, error.errors()))) from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Checks what types and ranges cannot express, so that a bad value stops the launcher."""
        parts = self._replaced
        if self.corpora and parts.of("engine").get("rule") == "suffixdecoding":
            raise ConfigError(
                f"corpora need agentspec's own drafts, got the baseline {self.baseline!r}, which drafts from none; remove "
                "one of the two"
            )
        if self.tau != "auto" and "tau" in parts.of("hybrid"):
            raise ConfigError(
                f"tau must be set once, got {self.tau!r} beside the baseline {self.baseline!r}; remove one of the two"
            )
        missing = [path for path in self.corpus_paths if not os.path.isfile(path)]
        if missing:
            raise ConfigError(
                f"corpora must be files that `agentspec corpus build` wrote, got {', '.join(missing)}, "
                "which are not there; check the paths"
            )
        if self.admin_folder and not os.path.isdir(self.admin_folder):
            raise ConfigError(f"admin_folder must be a folder, got {self.admin_folder!r}, which is none; make it first")
        self.engine_config(vocab_size=None, max_draft_tokens=1, trees=True)
        self.hybrid_config(max_nodes=1, trees=True)
        parse_widths(self.widths)
        parse_threshold(self.stop_threshold)
        make_controller(self.control_config(has_drafter=False), self.step_profile())
        self.sharing_config()
        check_namespace_field(self.namespace_from)
        check_replay(self.replay)
        if self.store not in ("", NOTHING_URL):
            place(self.store)
        return self

    @property
    def _replaced(self) -> Baseline:
        return parse_baseline(self.baseline)

    @property
    def draft_model_pause(self) -> PauseRuleName:
        return self._replaced.pause

    @property
    def corpus_paths(self) -> list[str]:
        """The files named by `corpora`."""
        return [path for path in self.corpora.split(":") if path]

    def engine_config(
        self, *, vocab_size: int | None, max_draft_tokens: int, trees: bool, tokenizer: str = ""
    ) -> EngineConfig:
        """The engine's configuration. Raises ConfigError if the mode is tree, and trees cannot be verified.

        Args:
            max_draft_tokens: The most drafted tokens of a row.
            trees: Whether the attention backend can verify trees.
            tokenizer: The identity of the served model's tokenizer.
        """
        if self.mode == "tree" and not trees:
            raise ConfigError(
                "mode tree needs an attention backend that verifies trees: triton or flashinfer, or fa3 with "
                "--speculative-eagle-topk 2 or more; choose one of them, or set --agentspec-mode auto"
            )
        fields: dict[str, Any] = {
            "vocab_size": vocab_size,
            "min_token_prob": parse_min_token_prob(self.min_token_prob, max_draft_tokens),
            "mode": "tree" if self.mode != "chain" and trees else "chain",
            "max_draft_tokens": max_draft_tokens,
            "budget_bytes": self.budget_mb << 20,
            "conversation_bytes": self.conversation_mb << 20,
            "max_siblings": self.max_siblings,
            "num_threads": self.num_threads or min(len(os.sched_getaffinity(0)), _MOST_THREADS),
            "background": True,
            "tokenizer": tokenizer,
            "estimates": Estimates.load(self.estimates) if self.estimates else None,
        }
        return EngineConfig(**fields | self._replaced.of("engine"))

    def hybrid_config(self, *, max_nodes: int, trees: bool) -> HybridConfig:
        """The configuration of the choice between suffix drafts and the draft model's.

        `max_nodes`: the most drafted tokens of a row that are verified.
        """
        fields: dict[str, Any] = {
            "tau": parse_tau(self.tau),
            "union": self.hybrid_union,
            "min_token_prob": parse_min_token_prob(self.min_token_prob, max_nodes),
            "max_nodes": max_nodes,
            "trees": trees,
        }
        return HybridConfig(**fields | self._replaced.of("hybrid"))

    def control_config(self, *, has_drafter: bool) -> ControlConfig:
        """The controller's configuration. `has_drafter`: whether there is a draft model."""
        # With a draft model, the later gains of a draft that is cut do not count.
        return ControlConfig(objective="run" if has_drafter else "ahead", **self._replaced.of("control"))

    def step_profile(self) -> Profile | None:
        """Reads the file `profile`; None if the setting is empty."""
        return Profile.load(self.profile) if self.profile else None

    def sharing_config(self) -> SharingConfig:
        """The configuration of the exchange with the store."""
        return SharingConfig(
            ttl_seconds=self.store_ttl_days * 86400.0,
            quota_bytes=self.store_quota_mb << 20,
        )

    def as_dict(self) -> dict[str, Any]:
        """All fields. The store's URL may contain a password."""
        return self.model_dump()

    def shown(self) -> dict[str, object]:
        """All fields in a form that may be logged, without the password in the store's URL."""
        return {**self.as_dict(), "store": redact(self.store)}


MEASUREMENTS: Mapping[str, FieldInfo] = Measurements.model_fields
FIELDS: Mapping[str, FieldInfo] = {name: of for name, of in Settings.model_fields.items() if name not in MEASUREMENTS}
_ALL: Mapping[str, FieldInfo] = Settings.model_fields


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return FLAG_PREFIX + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return VARIABLE_PREFIX + name.upper()


def places(name: str) -> str:
    """The places where a setting can be set, for messages."""
    if name in MEASUREMENTS:
        return f"the variable {variable_of(name)}"
    flag = f"the flag {flag_of(name)}, " if name in FLAGS else ""
    return f"{flag}the variable {variable_of(name)} or the key {name} of the settings file"


def meaning(name: str) -> str:
    """The help of a setting, on one line."""
    return " ".join((_ALL[name].description or "").split())


def default_of(name: str) -> str:
    """The default of a setting, as help texts show it."""
    value = _ALL[name].default
    return "empty" if value == "" else str(value).lower() if isinstance(value, bool) else str(value)


def requirement(name: str) -> str:
    """The type and the range of a setting, for messages."""
    kind, limits = _ALL[name].annotation, _ALL[name].metadata
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    bounds = [
        f"{sign} {getattr(limit, bound):g}"
        for bound, sign in (("gt", ">"), ("ge", ">="), ("le", "<="))
        for limit in limits
        if hasattr(limit, bound)
    ]
    words: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a number"}
    return f"{words.get(kind, 'text')} {' and '.join(bounds)}".strip()


def _problem(error: ErrorDetails) -> str:
    """The message for an error that pydantic found: what was required, what was got, and the remedy."""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, AgentspecError):
        return str(cause)
    name, value = str(error["loc"][0]), error["input"]
    if name not in _ALL:
        return f"unknown setting {name}; known are {', '.join(FIELDS)}"
    # The store's URL may hold a password.
    got = f"a value of type {type(value).__name__}" if name == "store" else repr(value)
    return f"{name} must be {requirement(name)}, got {got}; correct {places(name)}"
