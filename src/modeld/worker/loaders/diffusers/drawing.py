"""One call's pictures, drawn one after the other. Runs in the drawing thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from modeld.errors import BadRequest, EngineError
from modeld.protocol.messages import MediaLimits
from modeld.protocol.tasks import ImageFormat, ImageTask, Picture, Step
from modeld.worker.loaders.diffusers.pipeline import Pipelines, takes
from modeld.worker.media import pictures
from modeld.worker.media.pictures import Size, by

SEEDS = 2**63
"""Seeds are below this; the picture after the last one's begins again at 0."""


class Stopped(Exception):
    """The call was cancelled; raised out of a denoising step, after which the pipeline is as good as new."""


@dataclass(frozen=True)
class Job:
    """A checked call. `arguments` are the pipeline's, but for the seed. `area`: where an edit draws."""

    pipe: Any
    arguments: dict[str, Any]
    n: int
    previews: int
    size: tuple[int, int] | None
    picture: Any | None = None
    area: Any | None = None
    format: ImageFormat = "png"
    quality: int = 100

    def coded(self, picture: Any) -> bytes:
        """Return what was drawn as a file, with all that an edit was not to touch as it was."""
        return pictures.encode(pictures.kept(picture, self.picture, self.area), self.format, self.quality)


def prepare(pipelines: Pipelines, task: ImageTask, options: Mapping[str, Any], limits: MediaLimits) -> Job:
    """Check a task, decode its pictures and choose the pipeline. Raises BadRequest."""
    size = _size(pipelines, task, limits)
    picture = None if task.image is None else pictures.decode(task.image, "image", limits)
    mask = None if task.mask is None else pictures.decode(task.mask, "mask", limits)
    area = None
    if picture is None:
        if mask is not None or task.strength is not None:
            raise _cannot("mask" if mask is not None else "strength", "it goes with a picture in 'image'")
        pipe = pipelines.text
    else:
        if mask is not None and mask.size != picture.size:
            raise _cannot("mask", f"it is {by(mask.size)} pixels, its picture {by(picture.size)}")
        if mask is None and task.prompt and pictures.has_holes(picture):
            mask = picture
        area = None if mask is None else pictures.drawing_area(mask)
        pipe = pipelines.image if area is None else pipelines.inpaint
        if pipe is None:
            raise _cannot("image" if area is None else "mask", "this model cannot work on a given picture")
    steps = task.steps or int(options.get("num_inference_steps") or 30)
    arguments: dict[str, Any] = {"prompt": task.prompt, "num_inference_steps": steps}
    guidance = options.get("guidance_scale") if task.guidance is None else task.guidance
    if takes(pipe, "guidance_scale"):
        if guidance is not None:
            arguments["guidance_scale"] = float(guidance)
    elif task.guidance is not None:
        raise _cannot("guidance_scale", "this model has no guidance")
    if task.negative_prompt:
        if not takes(pipe, "negative_prompt") or (guidance is not None and guidance <= 1):
            raise _cannot("negative_prompt", "it has no effect in this model without a guidance above 1")
        arguments["negative_prompt"] = task.negative_prompt
    if picture is None:
        if size is not None:
            arguments |= {"width": size[0], "height": size[1]}
        return Job(pipe, arguments, task.n, task.previews, size, None, None, task.format, task.quality)
    job = Job(pipe, arguments, task.n, task.previews, size, picture, area, task.format, task.quality)
    return _upon(pipelines, job, task, steps)


def _upon(pipelines: Pipelines, job: Job, task: ImageTask, steps: int) -> Job:
    """Complete a job that works on a picture: everything in the size of the result."""
    assert job.picture is not None
    factor = pipelines.factor
    width, height = job.size or tuple(max(factor, side // factor * factor) for side in job.picture.size)
    picture, area = job.picture.resize((width, height)), job.area
    arguments = dict(job.arguments, image=picture.convert("RGB"))
    if task.strength is not None:
        if not takes(job.pipe, "strength"):
            raise _cannot("strength", "this model has none")
        if int(steps * task.strength) < 1:
            raise _cannot("strength", f"{task.strength:g} of {steps} steps leaves none; raise one of them")
        arguments["strength"] = task.strength
    if area is not None:
        area = area.resize((width, height))
        arguments["mask_image"] = area
    if takes(job.pipe, "width"):
        arguments |= {"width": width, "height": height}
    return replace(job, arguments=arguments, size=(width, height), picture=picture, area=area)


def _size(pipelines: Pipelines, task: ImageTask, limits: MediaLimits) -> Size | None:
    if task.width is None or task.height is None:
        return None
    pictures.check_drawn((task.width, task.height), pipelines.factor, limits, task.format)
    return task.width, task.height


def _cannot(param: str, why: str) -> BadRequest:
    return BadRequest(f"'{param}' cannot be used: {why}", code="invalid_value", param=param)


def draw(
    pipelines: Pipelines,
    job: Job,
    seed: int,
    tell: Callable[[Step | Picture], None],
    stopped: threading.Event,
) -> int:
    """Draw all pictures and `tell` of each; return the denoising steps taken.

    Picture i has the seed `seed` + i, and comes out the same when it is asked for alone. Raises Stopped
    within a step of `stopped`; BadRequest, EngineError.
    """
    taken = 0
    for index in range(job.n):
        own_seed = (seed + index) % SEEDS
        watch = _Watch(job, index, tell, stopped)
        data = _one(pipelines, job, own_seed, watch)
        taken += watch.steps
        tell(Picture(index, data, own_seed))
    return taken


class _Watch:
    """Follows one picture's denoising from inside the pipeline."""

    def __init__(
        self, job: Job, index: int, tell: Callable[[Step | Picture], None], stopped: threading.Event
    ) -> None:
        self._job, self._index, self._tell, self._stopped = job, index, tell, stopped
        self._shown = 0
        self.steps = 0

    def check(self) -> None:
        if self._stopped.is_set():
            raise Stopped

    def __call__(self, pipe: Any, step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        self.check()
        job, total = self._job, max(int(getattr(pipe, "num_timesteps", 0) or 0), step + 1)
        self.steps = step + 1
        which = "drawing" if job.n == 1 else f"drawing picture {self._index + 1} of {job.n}"
        self._tell(Step((self._index + self.steps / total) / job.n, f"{which}: step {self.steps} of {total}"))
        due = self._shown < job.previews and self.steps < total
        if due and self.steps * (job.previews + 1) >= (self._shown + 1) * total:
            data = _preview(pipe, tensors.get("latents"), job)
            if data is not None:
                self._tell(Picture(self._index, data, None, self._shown))
            self._shown += 1
        return tensors


def _one(pipelines: Pipelines, job: Job, seed: int, watch: _Watch) -> bytes:
    import torch

    watch.check()
    arguments = dict(job.arguments)
    # Seeded on the CPU: the same seed then gives the same noise on every device.
    arguments["generator"] = torch.Generator("cpu").manual_seed(seed)
    if takes(job.pipe, "callback_on_step_end"):
        arguments["callback_on_step_end"] = watch
    try:
        output = job.pipe(**arguments)
    except (Stopped, MemoryError):
        raise
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise EngineError(
            "the GPU memory this model was given is too small for this picture; ask for a smaller one "
            f"({str(error).partition(chr(10))[0][:200]})",
            code="out_of_memory",
        ) from None
    except ValueError as error:  # how pipelines refuse their arguments
        raise BadRequest(f"the model refuses this: {' '.join(str(error).split())[:500]}") from error
    except Exception as error:
        raise EngineError(f"diffusers failed: {type(error).__name__}: {str(error)[:500]}") from error
    if any(getattr(output, "nsfw_content_detected", None) or ()):
        raise BadRequest(
            "the model's own safety checker held this picture back; try another seed or prompt",
            code="content_policy_violation",
        )
    picture = output.images[0]
    if job.size is not None and picture.size != job.size:
        raise BadRequest(
            f"this model cannot draw {by(job.size)}: it gave {by(picture.size)}; ask for that instead",
            code="invalid_value",
            param="size",
        )
    return job.coded(picture)


def _preview(pipe: Any, latents: Any, job: Job) -> bytes | None:
    """Return what the picture looks like by now, None where the family's latents are not understood."""
    import torch

    try:
        vae = pipe.vae
        if latents.ndim != 4 or (vae.dtype == torch.float16 and getattr(vae.config, "force_upcast", False)):
            return None
        with torch.no_grad():
            scaled = latents[:1].to(vae.dtype) / vae.config.scaling_factor
            scaled = scaled + (getattr(vae.config, "shift_factor", None) or 0.0)
            image = vae.decode(scaled, return_dict=False)[0]
        return job.coded(pipe.image_processor.postprocess(image, output_type="pil")[0])
    except Exception as error:  # a preview is not worth the picture
        print(f"no preview: {type(error).__name__}: {error}", flush=True)
        return None


def count_tokens(pipelines: Pipelines, task: ImageTask) -> int:
    """Return the tokens of a task's prompts, 0 where the family has no tokenizer of the usual name."""
    tokenizer = getattr(pipelines.text, "tokenizer", None)
    texts = [text for text in (task.prompt, task.negative_prompt) if text]
    if tokenizer is None or not texts:
        return 0
    try:
        return sum(len(tokenizer(text).input_ids) for text in texts)
    except Exception:
        return 0
