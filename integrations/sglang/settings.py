"""The settings of the plugin, and what each part of it is configured with by them; see setting_sources.py for where they
come from."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from agentspec.config import SERVED_MIN_TOKEN_PROB, EngineConfig
from agentspec.control import ControlConfig, Profile, make_controller
from agentspec.errors import ConfigError
from agentspec.estimates import Estimates
from agentspec.integrations.sglang.replay_setting import check_replay
from agentspec.integrations.sglang.tenants import check_namespace_field
from agentspec.integrations.sglang.width_tiers import parse_widths
from agentspec.policy import HybridConfig, parse_tau, pause_rule
from agentspec.store.config import SharingConfig
from agentspec.store.secrets import NAMESPACE_KEY_VARIABLE, PASSWORD_VARIABLE, STORE_KEY_VARIABLE
from agentspec.store.urls import place, redact

# More wait for each other's memory.
_MOST_THREADS = 8

FLAG_PREFIX = "--agentspec-"


def switch(text: str) -> bool:
    """Parses what stands for yes or no in a variable; raises ValueError for anything else."""
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        raise ValueError(f"must be one of {', '.join(known)}")
    return known[text.lower()]


def _setting(default: Any, help_text: str, parse: Callable[[str], Any], *, is_shown: bool = True) -> Any:
    return field(default=default, repr=is_shown, metadata={"help": help_text, "parse": parse})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator may choose. Every field is also a flag, a variable and a key of the JSON file.

    Raises:
        ConfigError: a value is of the wrong type or out of range; the message names field, value and range.
    """

    mode: Literal["auto", "tree", "chain"] = _setting(
        "auto", "shape of the drafts: tree, chain, or auto (tree where the attention backend verifies trees)", str
    )
    rule: Literal["calibrated", "suffixdecoding"] = _setting(
        "calibrated",
        "what is drafted: calibrated (one tree from all sources) or suffixdecoding (the paper's rule)",
        str,
    )
    alpha: float = _setting(4.0, "the rule suffixdecoding: drafted tokens per matched token, > 0", float)
    max_pattern: int = _setting(64, "longest pattern that is matched, in tokens, >= 1", int)
    min_token_prob: float = _setting(
        SERVED_MIN_TOKEN_PROB, "a token whose estimated acceptance is below is not drafted, 0 to 1", float
    )
    budget_mb: int = _setting(256, "memory for finished outputs over all namespaces, in MiB, >= 0", int)
    conversation_mb: int = _setting(
        128, "memory for the indexes of finished requests, kept for the next turns of conversations, in MiB, >= 0", int
    )
    prompt_tail: int = _setting(16, "tokens of a prompt's end that are kept before its output, 0 to 1024", int)
    num_threads: int = _setting(
        0, "threads that share out the drafting of 32 rows and more, up to 64; 0: one for each core, at most 8", int
    )
    estimates: str = _setting(
        "", "file that `agentspec tune` wrote; empty: the estimates that come with agentspec", str
    )
    corpora: str = _setting(
        "",
        "files that `agentspec corpus` built, separated by colons; every namespace drafts from them, by the rule "
        "calibrated",
        str,
    )
    store: str = _setting(
        "",
        "where finished outputs are kept and shared: sqlite:///PATH, redis://HOST:PORT, rediss://, unix://, "
        "redis-sentinel://, redis-cluster://, or memory:// to keep nothing; empty: SQLite under the user's data "
        "directory, if that can be written",
        str,
        # It may hold a password.
        is_shown=False,
    )
    store_optional: bool = _setting(False, "start without the store where it cannot be used, with a warning", switch)
    store_model: str = _setting("", "the name by which replicas share a model's outputs; empty: the served name", str)
    store_password_file: str = _setting(
        "", f"file with the store's password; else the variable {PASSWORD_VARIABLE}, or the URL", str
    )
    store_key_file: str = _setting(
        "", f"file with the key that encrypts what is stored; else the variable {STORE_KEY_VARIABLE}, or none", str
    )
    store_ttl_days: float = _setting(30.0, "outputs are forgotten after so many days; 0: never", float)
    store_quota_mb: int = _setting(256, "the store's log of each namespace, at most, in MiB; 0: no limit", int)
    store_queue_tokens: int = _setting(
        16 << 20, "finished outputs wait for a slow store up to so many tokens, >= 1; then the oldest are dropped", int
    )
    store_load_seconds: float = _setting(
        60.0, "the server's start waits at most so long for what the store holds; loading goes on after that", float
    )
    namespace_from: str = _setting(
        "auto",
        "the request's field that says whose text it is: extra_key, cache_salt, custom_params.NAME, none (all are "
        "one), or auto (extra_key and cache_salt, as the prefix cache tells requests apart)",
        str,
    )
    namespace_key_file: str = _setting(
        "", f"file with the key that hides tenants' names in the store; else the variable {NAMESPACE_KEY_VARIABLE}", str
    )
    base: str = _setting(
        "auto",
        "with --speculative-draft-model-path: the algorithm that the draft model is for, EAGLE, EAGLE3 or STANDALONE; "
        "auto finds out; without it, EAGLE or NEXTN drafts with next-token (MTP) layers of the target",
        str,
    )
    tau: str = _setting(
        "auto",
        "with a draft model: a row gets its suffix draft where that promises more tokens than tau, else the model's; "
        "auto weighs both drafts and what they cost, 0 never runs the draft model, inf always",
        str,
    )
    hybrid_rule: str = _setting(
        "expected",
        "what is compared with tau: expected (calibrated tokens), score (the suffix draft's), match-length (at least "
        "4 tokens matched), payoff (a predictor that `agentspec tune --payoff` trained)",
        str,
    )
    hybrid_margin: float = _setting(
        0.15,
        "with tau auto: what the draft model promises a row must be that share more than would pay for it, >= 0",
        float,
    )
    draft_model_pause: str = _setting(
        "payoff",
        "when the draft model is paused, so that it neither reads prompts nor follows answers: payoff (while its drafts "
        "save less time than that takes), zero-length (while over 0.7 of the latest steps had no draft of it, "
        "SmartSpec's rule) or never",
        str,
    )
    payoff: str = _setting(
        "", "file of the predictor of the rule payoff; empty: the one that comes with agentspec", str
    )
    acceptance_head: str = _setting(
        "auto",
        "SpecDec++ head that says how likely the draft model's tokens are to be accepted: a folder with "
        "acceptance_head.safetensors, auto (the draft model's folder, if it has one) or none",
        str,
    )
    stop_threshold: float = _setting(
        1.0,
        "the draft model stops where the probability that a token is rejected exceeds this; 1: where a further pass "
        "would not pay",
        float,
    )
    controller: str = _setting(
        "goodput",
        "how much of the drafts each step verifies: goodput (as much as pays, by estimates and measured seconds), "
        "smartspec, batch-table, roofline (the latter two by a profile), fixed, or sweep (each width in turn, to measure them)",
        str,
    )
    controller_objective: str = _setting(
        "auto",
        "the controller goodput: run (tokens a second of all steps together), step (of each step by itself), ahead "
        "(what a cut draft still brings in later steps counts) or auto (ahead, but run with a draft model, whose drafts "
        "have to be paid for again)",
        str,
    )
    controller_length: int = _setting(15, "the controller fixed: drafted tokens a row, >= 0; 0 is plain decoding", int)
    widths: str = _setting(
        "auto",
        "on a GPU with captured graphs, the tokens a row that steps have graphs for, such as 1,2,4,8: steps are padded to "
        "the next one; auto: 1, 2, 4, ... up to --speculative-num-draft-tokens, which is then 64 by default, less beside "
        "more than 128 requests at once; one: that alone, 16 by default",
        str,
    )
    profile: str = _setting(
        "", "file that `agentspec profile` wrote, of this model on this device; empty: costs are learnt from steps", str
    )
    profiling: bool = _setting(
        False,
        "pad every step to the controller's width and list the latest steps with their times in /server_info, as "
        "`agentspec profile` needs it",
        switch,
    )
    admin_upload_mb: int = _setting(
        64, "largest request that adds a corpus over HTTP, in MiB, >= 1; managing needs --admin-api-key", int
    )
    admin_corpora_mb: int = _setting(1024, "memory for all corpora added over HTTP together, in MiB, >= 0", int)
    admin_folder: str = _setting(
        "", "folder below which files of this machine may be named as corpora over HTTP; empty: none may", str
    )
    breaker_failures: int = _setting(
        10, "drafting failures in a row after which drafting pauses for a while, >= 1", int
    )
    replay: str = _setting(
        "",
        "for measurements only, beside any algorithm: the model writes recorded answers, those of files or folders of "
        "calls, separated by colons, or, with requests, those that requests bring",
        str,
    )
    replay_unmatched: str = _setting(
        "refuse", "with replay: requests without a recorded answer are refused (refuse) or answered freely (free)", str
    )

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "tree", "chain"):
            raise ConfigError(
                f"mode must be auto, tree or chain, got {self.mode!r}; set {FLAG_PREFIX}mode to one of them"
            )
        whole = (
            *("max_pattern", "budget_mb", "conversation_mb", "prompt_tail", "num_threads", "breaker_failures"),
            *("controller_length", "admin_upload_mb", "admin_corpora_mb"),
            *("store_quota_mb", "store_queue_tokens"),
        )
        for name in whole:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name} must be a whole number, got {value!r}")
        for name in (
            "alpha",
            "min_token_prob",
            "store_ttl_days",
            "store_load_seconds",
            "stop_threshold",
            "hybrid_margin",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{name} must be a number, got {value!r}")
        if self.budget_mb < 0:
            raise ConfigError(f"budget_mb must be >= 0 MiB, got {self.budget_mb}; 0 keeps no finished outputs")
        if self.conversation_mb < 0:
            raise ConfigError(f"conversation_mb must be >= 0 MiB, got {self.conversation_mb}; 0 keeps none")
        for name in ("store_optional", "profiling"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if not 0.0 < self.stop_threshold <= 1.0:
            raise ConfigError(
                f"stop_threshold must be above 0 and at most 1, got {self.stop_threshold}; 1 never stops early"
            )
        paths = ("estimates", "corpora", "store_password_file", "store_key_file", "namespace_key_file")
        texts = (
            "admin_folder",
            "store_model",
            "base",
            "tau",
            "hybrid_rule",
            "draft_model_pause",
            "payoff",
            "acceptance_head",
        )
        for name in (*paths, *texts, "widths", "controller", "controller_objective", "profile"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} must be a string, got {getattr(self, name)!r}")
        if self.corpora and self.rule != "calibrated":
            raise ConfigError(f"corpora need the rule calibrated, got {self.rule!r}, which drafts from none")
        missing = [path for path in self.corpus_paths if not os.path.isfile(path)]
        if missing:
            raise ConfigError(
                f"corpora must be files that `agentspec corpus build` wrote, got {', '.join(missing)}, "
                "which are not there; check the paths"
            )
        if self.admin_upload_mb < 1:
            raise ConfigError(f"admin_upload_mb must be >= 1 MiB, got {self.admin_upload_mb}")
        if self.admin_corpora_mb < 0:
            raise ConfigError(f"admin_corpora_mb must be >= 0 MiB, got {self.admin_corpora_mb}; 0 takes no corpora")
        if self.admin_folder and not os.path.isdir(self.admin_folder):
            raise ConfigError(f"admin_folder must be a folder, got {self.admin_folder!r}, which is none; make it first")
        if self.breaker_failures < 1:
            raise ConfigError(f"breaker_failures must be >= 1, got {self.breaker_failures}")
        # The engine and the store own the ranges of their fields; checked here so that a bad value stops the launcher.
        self.engine_config(vocab_size=None, max_draft_tokens=1, trees=True)
        self.hybrid_config(max_nodes=1, trees=True)
        pause_rule(self.draft_model_pause)
        parse_widths(self.widths)
        make_controller(self.control_config(has_drafter=False), self.step_profile())
        self.sharing_config()
        check_namespace_field(self.namespace_from)
        check_replay(self.replay, self.replay_unmatched)
        if self.store:
            place(self.store)

    @property
    def corpus_paths(self) -> list[str]:
        """The files named by `corpora`."""
        return [path for path in self.corpora.split(":") if path]

    def engine_config(
        self, *, vocab_size: int | None, max_draft_tokens: int, trees: bool, tokenizer: str = ""
    ) -> EngineConfig:
        """The engine's configuration; `trees` says whether the attention backend can verify trees, `tokenizer` names
        the served model's."""
        if self.mode == "tree" and not trees:
            raise ConfigError(
                "mode tree needs an attention backend that verifies trees: triton or flashinfer, or fa3 with "
                "--speculative-eagle-topk 2 or more; choose one of them, or set --agentspec-mode auto"
            )
        mode: Literal["tree", "chain"] = "tree" if self.mode != "chain" and trees else "chain"
        return EngineConfig(
            vocab_size=vocab_size,
            rule=self.rule,
            max_pattern=self.max_pattern,
            alpha=float(self.alpha),
            min_token_prob=float(self.min_token_prob),
            mode=mode,
            max_draft_tokens=max_draft_tokens,
            budget_bytes=self.budget_mb << 20,
            conversation_bytes=self.conversation_mb << 20,
            prompt_tail=self.prompt_tail,
            num_threads=self.num_threads or min(len(os.sched_getaffinity(0)), _MOST_THREADS),
            background=True,
            tokenizer=tokenizer,
            estimates=Estimates.load(self.estimates) if self.estimates else None,
        )

    def hybrid_config(self, *, max_nodes: int, trees: bool) -> HybridConfig:
        """How suffix drafts and a draft model's are chosen between; a row is verified with `max_nodes` drafted tokens
        at most."""
        return HybridConfig(
            rule=cast(Any, self.hybrid_rule),
            tau=parse_tau(self.tau),
            payoff=self.payoff,
            margin=float(self.hybrid_margin),
            min_token_prob=float(self.min_token_prob),
            max_nodes=max_nodes,
            trees=trees,
        )

    def control_config(self, *, has_drafter: bool) -> ControlConfig:
        """How the controller decides; `has_drafter` says whether some drafts are a model's."""
        objective = self.controller_objective
        if objective == "auto":
            objective = "run" if has_drafter else "ahead"
        return ControlConfig(
            controller=cast(Any, self.controller),
            objective=cast(Any, objective),
            length=self.controller_length,
        )

    def step_profile(self) -> Profile | None:
        """What the file `profile` holds; None without one."""
        return Profile.load(self.profile) if self.profile else None

    def sharing_config(self) -> SharingConfig:
        """How the store is used."""
        return SharingConfig(
            queue_tokens=self.store_queue_tokens,
            ttl_seconds=self.store_ttl_days * 86400.0,
            quota_bytes=self.store_quota_mb << 20,
            load_seconds=self.store_load_seconds,
        )

    def as_dict(self) -> dict[str, Any]:
        """All fields; the store's URL may hold a password."""
        return dataclasses.asdict(self)

    def shown(self) -> dict[str, Any]:
        """All fields as they may be logged."""
        return {**self.as_dict(), "store": redact(self.store)}


FIELDS = {f.name: f for f in dataclasses.fields(Settings)}
