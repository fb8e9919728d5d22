"""vLLM's serving layer, without its HTTP: the objects behind the routes of its own server."""

from __future__ import annotations

import logging
from typing import Any

from modeld.worker.loaders.vllm.build import Engine

TRANSCRIPTION = "transcription"

_NOISY = (
    "vllm.entrypoints.openai.chat_completion.serving",
    "vllm.entrypoints.openai.completion.serving",
)
"""Loggers that write a traceback for every request that is refused; what matters of it is answered."""


class Serving:
    """What serves one model; a part that the model has no use for is None."""

    def __init__(self, engine: Engine, tasks: tuple[str, ...], name: str, *, log_requests: bool) -> None:
        from vllm.entrypoints.openai.models.protocol import BaseModelPath
        from vllm.entrypoints.openai.models.serving import OpenAIServingModels
        from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
        from vllm.entrypoints.serve.utils.request_logger import RequestLogger
        from vllm.renderers.online_renderer import OnlineRenderer

        for module in _NOISY:
            logging.getLogger(module).setLevel(logging.CRITICAL)
        llm = engine.llm
        # Requests with their parameters, never a prompt.
        self._logger = RequestLogger(max_log_len=0) if log_requests else None
        self.tasks = tasks
        self.models = OpenAIServingModels(
            engine_client=llm,
            base_model_paths=[BaseModelPath(name=name, model_path=llm.model_config.model)],
            lora_modules=None,
        )
        template: dict[str, Any] = {
            "chat_template": None,
            "chat_template_content_format": engine.content_format,
            "trust_request_chat_template": False,
        }
        parsers: dict[str, Any] = {
            "enable_auto_tools": engine.tool_parser is not None,
            "tool_parser": engine.tool_parser,
            "reasoning_parser": engine.reasoning_parser or "",
        }
        self.renderer = OnlineRenderer(
            model_config=llm.model_config,
            renderer=llm.renderer,
            request_logger=self._logger,
            trust_request_mm_kwargs=False,
            **template,
            **parsers,
        )
        self.tokenization = ServingTokenization(
            self.models, self.renderer, request_logger=self._logger, **template
        )
        self.chat: Any = None
        self.completion: Any = None
        self.embedding: Any = None
        self.scores: Any = None
        self.transcription: Any = None
        self.translation: Any = None
        if "generate" in tasks:
            self._generate(llm, template, parsers)
        if TRANSCRIPTION in tasks:
            self._transcribe(llm)
        self._pool(llm, engine.content_format)

    def _generate(self, llm: Any, template: dict[str, Any], parsers: dict[str, Any]) -> None:
        from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
        from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

        self.chat = OpenAIServingChat(
            engine_client=llm,
            models=self.models,
            response_role="assistant",
            online_renderer=self.renderer,
            request_logger=self._logger,
            enable_prompt_tokens_details=True,
            **template,
            **parsers,
        )
        self.completion = OpenAIServingCompletion(
            llm,
            self.models,
            online_renderer=self.renderer,
            request_logger=self._logger,
            enable_prompt_tokens_details=True,
        )

    def _transcribe(self, llm: Any) -> None:
        from vllm.entrypoints.speech_to_text.transcription.serving import OpenAIServingTranscription
        from vllm.entrypoints.speech_to_text.translation.serving import OpenAIServingTranslation

        self.transcription = OpenAIServingTranscription(llm, self.models, request_logger=self._logger)
        self.translation = OpenAIServingTranslation(llm, self.models, request_logger=self._logger)

    def _pool(self, llm: Any, content_format: str) -> None:
        from vllm.entrypoints.pooling.utils import enable_scoring_api
        from vllm.renderers.chat_utils import ChatTemplateConfig
        from vllm.tasks import POOLING_TASKS

        if not any(task in POOLING_TASKS for task in self.tasks):
            return
        common: dict[str, Any] = {
            "request_logger": self._logger,
            "chat_template_config": ChatTemplateConfig(
                chat_template=None,
                chat_template_content_format=content_format,
                trust_request_chat_template=False,
                trust_request_mm_kwargs=False,
            ),
        }
        if llm.model_config.get_pooling_task(self.tasks) == "embed":
            from vllm.entrypoints.pooling.embed.serving import ServingEmbedding

            self.embedding = ServingEmbedding(llm, self.models, **common)
        if enable_scoring_api(self.tasks, llm.model_config):
            from vllm.entrypoints.pooling.scoring.serving import ServingScores

            self.scores = ServingScores(llm, self.models, supported_tasks=self.tasks, **common)

    def close(self) -> None:
        """End what has threads of its own."""
        for part in (self.transcription, self.translation):
            if part is not None:
                part.shutdown()
