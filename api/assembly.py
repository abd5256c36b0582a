"""Make the models of `penstock serve` from its options: the scheduler and the served names of each."""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import click
import msgspec
import structlog

from api.access.api_keys import ApiKeys
from api.announcement import end_stages, show_ready, show_stage
from api.bodies.worker_threads import WorkerThreads
from api.options.back_end import check_back_end
from api.options.model_list import EMBEDDED, ModelOptions, models_of
from api.options.option_values import between_commas
from api.options.options import ENVIRONMENT_PREFIX
from api.options.scheduler_settings import scheduler_config
from api.options.settings import ServeSettings
from api.served_models import ServedModel, ServedModels
from api.smollm2 import model as smollm2
from api.version import own_version, release_of
from scheduler.config import SchedulerConfig
from scheduler.engine.mlx.cpu.fast_blas import BlasChoice, prepare
from scheduler.engines.boundary import EngineProvision, Launchers, MemoryShare
from scheduler.errors import OptionError, StartupError
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.fleet.memory_need import need_bytes
from scheduler.fleet.model import Model
from scheduler.models.embedded_model import EMBEDDED_FOLDER, EMBEDDED_NAME
from scheduler.processes.machine_share import cores_of_process, gpus_of, share_of
from scheduler.processes.process import ProcessLauncher
from scheduler.prompt import model_folder
from scheduler.prompt.model_folder import ModelFolder
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.service import Scheduler
from scheduler.shared.folder.reading import GENERATION_CONFIG
from scheduler.shared.user_cache import user_cache_folder
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.vllm_names import VllmNames

if TYPE_CHECKING:
    from api.remote_engines import RemoteEngines

_log = structlog.get_logger("serving")
_FOR_TESTS = ": the embedded model is for tests; --model names one that answers, such as smollm2"


@dataclass(frozen=True, slots=True)
class _Found:
    """A model on disk. `names` are those in requests."""

    options: ModelOptions
    folder: ModelFolder
    name: str
    names: Sequence[str]
    note: str


@dataclass(frozen=True, slots=True)
class Assembled:
    """What is served, and what all models share."""

    models: ServedModels
    remote_engines: RemoteEngines | None = None
    """Set where engines are on other machines."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all models have in common."""

    keys: ApiKeys
    blas: BlasChoice
    metrics: Metrics
    threads: WorkerThreads
    memory: MemoryBudget | None
    """The memory that several models share; None if one model has all of it."""
    models: int


def assemble(settings: ServeSettings, keys: ApiKeys) -> Assembled:
    """Find every model, and print what the operator should know of it. Raise StartupError."""
    several = models_of(settings)
    if any(one.settings.engine == "mlx" and not one.settings.engines_join for one in several):
        check_back_end()
    if len(several) > 1 and any(options.settings.engines_join for options in several):
        raise OptionError("--engines join: there may be one model, which all machines have, not several")
    # Before a model is fetched, which takes minutes.
    if settings.kv_disk is not None and not settings.engines_join:
        _check_disk(settings.kv_disk)
    blas = _prepare_blas(several)
    found = [_find_model(options) for options in several]
    for name, times in Counter(name for one in found for name in one.names).items():
        if times > 1:
            raise OptionError(f"two models are named {name!r}: give each a name of its own (--models)")
    metrics = _metrics(settings)
    memory = _memory(found) if len(found) > 1 else None
    shared = _Shared(keys, blas, metrics, WorkerThreads(), memory, len(several))
    made = [_made(shared, number, one) for number, one in enumerate(found)]
    fleet = Fleet([model for model, _ in made], memory)
    for one, (model, _) in zip(found, made, strict=True):
        if one.options.pinned and model is not fleet.first:
            fleet.load(model.name, -math.inf)
    return Assembled(
        ServedModels(fleet, {model.name: served for model, served in made}),
        _remote_engines(several[0].settings, fleet),
    )


def _check_disk(folder: Path) -> None:
    """Raise StartupError for a folder in which no prefix could survive a restart."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StartupError(f"--kv-disk {folder} cannot be used: {error.strerror}") from error


def _remote_engines(settings: ServeSettings, fleet: Fleet) -> RemoteEngines | None:
    if not settings.engines_join:
        return None
    # Imported here: a server whose engines are all on this machine loads nothing of it.
    from api.remote_engines import RemoteEngines

    return RemoteEngines(settings, fleet.first.scheduler.pool, engine_environment(os.environ))


def _made(shared: _Shared, number: int, found: _Found) -> tuple[Model, ServedModel]:
    """Make one model. The first one, `number` 0, is loaded at once."""
    options, settings, name = found.options, found.options.settings, found.names[0]
    alone = shared.models == 1
    click.echo(f"model      {found.note}")
    tokenizer = HubTokenizer(
        found.folder.path,
        model_type=found.folder.model_type,
        tool_parser=settings.tool_parser,
        reasoning_parser=settings.reasoning_parser,
    )
    if "user" in tokenizer.template_reading.dropped:
        _log.warning("chat_template", model=settings.model, note="; ".join(tokenizer.template_verdicts))
    preparation = Preparation(
        tokenizer,
        found.folder,
        settings.thinking(),
        settings.hold_calls,
        repetition=settings.repetition(),
        grammar_environment=engine_environment(os.environ),
    )
    config = _config(found, shared, number, tokenizer)
    embedder, tool_calls = found.folder.embedder, tokenizer.answer_format.tool_calls
    _log.info(
        "model",
        model=name,
        blas=shared.blas.name,
        answers=tokenizer.found,
        **({"tools": tool_calls} if embedder is None else {}),
        task="chat" if embedder is None else embedder.kind,
        engines=config.engines,
        adapters=[source.name for source in config.engine.adapters],
        prefixes="shared by everybody" if config.cache_sharing == "all" else "shared within a tenant",
    )
    loading = _Loading("" if alone else name, config.engines)
    memory = shared.memory
    scheduler = Scheduler(
        config,
        preparation,
        EngineProvision(
            _launchers(shared.blas, config),
            (lambda engine: MemoryShare()) if memory is None else partial(memory.share_of, name),
            loading.show,
        ),
        shared.threads,
        metrics=shared.metrics.of_model(name),
    )
    if memory is not None:
        memory.follow(name, scheduler.pool, is_pinned=options.pinned)
    kept = alone and options.idle_seconds is None
    model = Model(name, scheduler, pinned=options.pinned or kept, idle_seconds=options.idle_seconds)
    loading.tell = model.loading
    return model, _served_model(found, tool_calls)


def _memory(found: Sequence[_Found]) -> MemoryBudget:
    """Return the one budget of all models, which the first one's engines find out."""

    def need(one: _Found, device: str | None) -> int:
        settings = one.options.settings
        scripted = settings.engine == "scripted"
        return 0 if scripted else need_bytes(one.folder.path, settings.weights_dtype, device)

    return MemoryBudget({one.names[0]: partial(need, one) for one in found})


def _config(found: _Found, shared: _Shared, number: int, tokenizer: HubTokenizer) -> SchedulerConfig:
    embedder = found.folder.embedder
    config = scheduler_config(
        found.options.settings,
        found.folder.path,
        shared.keys,
        user_cache_folder(os.environ),
        embedder,
        shared.models,
    )
    # One model that cannot be loaded does not end the others.
    must_start = shared.models == 1 and not config.engines_join
    config = replace(config, load_at_start=number == 0, must_start=must_start)
    own: dict[str, Any] = {}
    if config.engine.backend == "mlx" and embedder is None:
        own["tokenizer"] = tokenizer.for_grammars()
    if config.engines_join and config.engine.backend == "mlx":
        own["model"] = found.name
    if config.engine.kv_disk and number:
        folder = re.sub(r"[^A-Za-z0-9._-]+", "-", found.names[0])
        own["kv_disk"] = str(Path(config.engine.kv_disk) / f"model-{folder}")
    return replace(config, engine=msgspec.structs.replace(config.engine, **own))


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without PENSTOCK_ options, which the engine gets by message: they include the
    API keys."""
    return {name: value for name, value in environment.items() if not name.startswith(ENVIRONMENT_PREFIX)}


def _launchers(blas: BlasChoice, config: SchedulerConfig) -> Launchers:
    """Return the launchers. Each engine gets its share of the machine, where the operator's environment
    leaves the choice."""
    environment = engine_environment(os.environ)
    cores, gpus = cores_of_process(), gpus_of(environment)

    def launcher(number: int) -> ProcessLauncher:
        share = share_of(number, config.engines, cores, gpus)
        own = {**share, **environment}
        if gpus and config.engines > 1:
            own["CUDA_VISIBLE_DEVICES"] = share["CUDA_VISIBLE_DEVICES"]
        return ProcessLauncher(blas.environment(own), config.supervision.stop_seconds)

    return launcher


class _Loading:
    """Shows the operator what an engine loads, and wakes the tasks that wait for it."""

    def __init__(self, model: str, engines: int) -> None:
        """`model` is empty if it is the server's only one."""
        self.tell: Callable[[str], None] = lambda stage: None
        self._model = model
        self._engines = engines
        self._served: set[str] = set()
        """Engines that have served before."""

    def show(self, engine: str, stage: str) -> None:
        where = "" if self._engines == 1 else f"engine {engine}: "
        whose = f"{f'{self._model}: ' if self._model else ''}{where}"
        if stage:
            show_stage(f"{whose}{stage}")
            _log.info("engine_loading", model=self._model or None, engine=engine, stage=stage)
        elif engine in self._served:
            show_ready(whose)
        else:
            self._served.add(engine)
            end_stages()
        self.tell(stage)


def _find_model(options: ModelOptions) -> _Found:
    settings = options.settings
    path, name, remark = _place(options)
    folder = model_folder.inspect(path, settings.task, max_model_len=settings.max_model_len)
    if settings.engine == "mlx" and not folder.brings_code:
        # Checked here, not in the engine, to name it before loading the tokenizer takes seconds.
        model_folder.check_type(folder.model_type)
    for note in folder.notes:
        _log.warning("model_folder", model=name, note=note)
    if folder.reading is not None and folder.reading.unread:
        _log.info("model_folder", model=name, unread=", ".join(folder.reading.unread))
    if name == smollm2.NAME:
        folder = replace(folder, generation_config={**smollm2.SAMPLING, **folder.generation_config})
    tensors = {} if folder.reading is None else folder.reading.weights.tensors
    stored = sum(tensor.nbytes for tensor in tensors.values())
    note = f"{settings.model or name}, {stored / 1e6:,.0f} MB of weights{remark}"
    return _Found(options, folder, name, [*settings.served_names(name)], note)


def _place(options: ModelOptions) -> tuple[Path, str, str]:
    """Return the model's folder, its name in requests, and a remark for the operator. Fetch it if it is not
    here. Raise StartupError."""
    match options.settings.model:
        case None if options.settings.engine == "scripted":
            return EMBEDDED_FOLDER, EMBEDDED_NAME, ""
        case None:
            try:
                return smollm2.ensure(_say_fetching), smollm2.NAME, ""
            except StartupError as error:
                raise StartupError(
                    f"the default model, SmolLM2, is not here: {error}\n"
                    "name one that is, as in `penstock serve FOLDER`; `penstock serve embedded` is for tests"
                ) from error
        case name if name == EMBEDDED:
            return EMBEDDED_FOLDER, EMBEDDED_NAME, _FOR_TESTS
        case name if name == smollm2.NAME:
            return smollm2.ensure(_say_fetching), smollm2.NAME, ""
        case name:
            path = model_folder.find(name)
            if not (path / "config.json").exists():
                raise StartupError(
                    f"--model: {name} holds no config.json, so it is no model's folder: name one in it"
                )
            return path, name, ""


def _say_fetching(text: str) -> None:
    click.echo(f"download   {text}")


def _served_model(found: _Found, tool_calls: str) -> ServedModel:
    """Return the served model. Log the defaults for what bodies omit, and the ignored values of its file."""
    defaults, ignored = found.options.settings.defaults(found.name, found.folder.generation_config)
    if ignored:
        _log.warning("generation_config_ignored", file=GENERATION_CONFIG, values=ignored)
    for name, resolved in defaults.items():
        _log.info("model_defaults", model=name, **resolved.described())
    return ServedModel(
        tuple(defaults),
        int(time.time()),
        tool_calls,
        defaults,
        embedder=found.folder.embedder,
    )


def _prepare_blas(models: Sequence[ModelOptions]) -> BlasChoice:
    if all(one.settings.engine == "scripted" for one in models):
        return BlasChoice("none: the scripted engine multiplies nothing")
    choice = prepare(user_cache_folder(os.environ))
    if choice.warning:
        _log.warning("blas", warning=choice.warning)
    return choice


def _metrics(settings: ServeSettings) -> Metrics:
    metrics = Metrics(between_commas(settings.metrics_tenants))
    metrics.describe_build(
        {
            "version": own_version().release,
            "python": platform.python_version(),
            "mlx": release_of("mlx"),
        }
    )
    metrics.registry.register(VllmNames(metrics))
    return metrics
