"""Keys that earlier versions had, and the advice that the error message gives to users who still set them."""

from pggan.core.errors import UserError

# {advice for the error message: names separated by spaces}.  A name is a withdrawn key, or a withdrawn group=choice.
REMEDIES = {
    "ADA uses all transforms, and adapts their probability.": "augmentation.blit augmentation.cutout augmentation.p"
    " augmentation.colors augmentation.geometry augmentation.interval augmentation.target augmentation.translation",
    "Use augmentation=ada instead.": "augmentation=diffaugment",
    "Films have constant speed, and path=walk is smoothed over 15 frames.": "axis constant_speed ease hold smoothness",
    "`pggan project` starts from the 4 of 1024 seeds whose images are most similar to the given image, "
    "and compares images by Laplacian pyramids.": "candidates distance starts",
    "Directions are principal components of 4x4 feature maps, with captions.": "captions method negative positive",
    "compute.kernels=auto uses the fastest operations, and compute.kernels=reference the simplest.": "compute.compile"
    " compute.convolution compute.penalty convolutions penalties",
    "A smaller compute.micro_batch_size= saves memory.": "compute.activation_checkpointing data.device_budget_mib",
    "compute.cuda_graphs= turns CUDA graphs on or off.": "modes",
    "Avatars are always drawn in DiceBear's style toon-head.": "data.style",
    "Training always verifies the checksums of all data files.": "data.verify verify",
    "Each machine finds its own address, and waits five minutes for the other machines.": "distributed.local_addr"
    " distributed.rdzv_timeout_seconds",
    "The first swd, kid or fid in the list evaluation.metrics= decides which checkpoint is best.": "evaluation.best",
    "Without evaluation.interval_images=, evaluations take at most 5 % of the training time.": "evaluation.max_share",
    "Missing weights of Inception are downloaded into the folder of torch.hub.": "evaluation.weights weights",
    "Use `pggan timelapse` for a film of a whole run, with all of its grids.": "grow_from milestones",
    "To open the page on another machine, run this command there: ssh -L PORT:127.0.0.1:PORT HOST.": "host",
    "`pggan prepare`: use crop= to crop images. `pggan train`: use checkpoint.keep= to keep more checkpoints.": "keep",
    "An installed package has the weights of efficientnet-lite0.": "model.features_weights",
    "The generator has no noise inputs.": "model.noise",
    "pggan always uses the paper's value.": "loss.drift loss.penalty_resolution model.fmap_decay model.latent_size",
    "Gradients are never clipped, as in the paper.": "gradients.clip",
    "pggan always uses Adam with the values of the paper.": "optimizer optimizer.beta1 optimizer.beta2"
    " optimizer.epsilon optimizer.reset_at_phase",
    "Set precision= to one value.": "precisions",
    "To upload the folder, run: hf upload USER/NAME FOLDER, with --private for a private repository.": "private push",
    "`pggan prepare` always writes report.json into the folder dest=.": "report",
    "Image files are always checked. With on_bad=stop, `pggan prepare` writes nothing if a file is bad.": "check",
    "Only the training images of known data sets are downloaded, into data/downloads.": "download root split",
    "Enlarged images always repeat pixels.": "scaling",
    "The learning rates always grow with the square root of schedule.batch_factor.": "schedule.learning_rate_scaling",
    "With hours=, training at low resolutions is shortened if it would take too long.": "schedule.max_growth_share",
    "calibrate=true measures training steps for at most two minutes.": "limit_seconds",
    "To write a trace, wrap Trainer.step in PyTorch's profiler.": "debug=profile monitor.profile_steps trace",
    "Set TERM=dumb to print lines instead of a live view. metrics.jsonl has all numbers.": "monitor.console",
    "Set a larger checkpoint.keep= for more checkpoints; the best checkpoint is always kept.": "checkpoint.milestones",
    "Set calibrate=true to measure this machine, or device= to predict the speed of a known GPU.": "tflops watts",
    "`pggan bench` always warms up as long as the device needs.": "warmup",
}
# A run can be resumed only with these values of its withdrawn keys.  Withdrawn keys that are not here may differ.
RESUMABLE = {
    **{"loss.drift": 0.001, "loss.penalty_resolution": "final", "augmentation.p": None, "augmentation.target": 0.6},
    **{"augmentation.blit": True, "augmentation.geometry": True, "augmentation.colors": True, "gradients.clip": None},
    **{"augmentation.interval": 4, "optimizer.beta1": 0.0, "optimizer.beta2": 0.99, "optimizer.epsilon": 1e-8},
    "optimizer.reset_at_phase": True,
}
WITHDRAWN = {name: remedy for remedy, names in REMEDIES.items() for name in names.split()}


def withdrawal(name: str) -> UserError | None:
    """The error for a withdrawn key or group=choice `name`; None if `name` is not withdrawn."""
    return UserError(f"{name} no longer exists.", f"Leave it out. {WITHDRAWN[name]}") if name in WITHDRAWN else None
