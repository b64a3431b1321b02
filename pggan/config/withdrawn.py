"""Keys and choices of earlier versions, and what to do instead: looked up where a key or a choice is unknown."""

from pggan.core.errors import UserError

# What to do, and the keys, or group=choice, of any command that it is for.
REMEDIES = {
    "ADA has all of its transformations, and adapts p every four updates to a mean sign of 0.6.": "augmentation.blit"
    " augmentation.colors augmentation.geometry augmentation.interval augmentation.p augmentation.target",
    "augmentation=ada takes its place.": "augmentation=diffaugment",
    "Films move at constant speed, and a walk is smoothed over 15 frames.": "axis constant_speed ease hold smoothness",
    "The nearest of 1024 seeds are moved, by Laplacian pyramids.": "candidates distance starts",
    "Directions are principal components of the first features, and sheets have captions.": "captions method",
    "compute.kernels=auto takes the fastest way, compute.kernels=reference the plainest.": "compute.compile"
    " compute.convolution compute.penalty convolutions penalties",
    "A smaller compute.micro_batch_size= saves memory.": "compute.activation_checkpointing data.device_budget_mib",
    "compute.cuda_graphs= says whether steps are captured.": "modes",
    "Avatars are DiceBear's toon-head.": "data.style",
    "Training compares all files with their checksums.": "data.verify verify",
    "The machines find their addresses, and wait five minutes for each other.": "distributed.local_addr"
    " distributed.rdzv_timeout_seconds",
    "The first of evaluation.metrics that has an order decides.": "evaluation.best",
    "Evaluations take 5 % of the time, or come at evaluation.interval_images=.": "evaluation.max_share",
    "Inception's weights are fetched, or looked for in the folder of torch.hub.": "evaluation.weights weights",
    "pggan timelapse shows the growth of the training.": "grow_from",
    "Reach the page through a tunnel: ssh -L PORT:127.0.0.1:PORT.": "host",
    "prepare keeps the whole square; of checkpoints it is checkpoint.keep=.": "keep",
    "model.features=efficientnet-lite0 comes with its weights.": "model.features_weights",
    "G adds no noise.": "model.noise",
    "It is as in the paper and its official code.": "gradients.clip loss.drift loss.penalty_resolution model.fmap_decay"
    " model.latent_size optimizer optimizer.beta1 optimizer.beta2 optimizer.epsilon optimizer.reset_at_phase",
    "Give one precision=.": "precisions",
    "Upload the folder: hf upload USER/NAME FOLDER, with --private where others must not see it.": "private push",
    "The report is report.json in the pyramid.": "report",
    "Files are always checked; with on_bad=stop nothing is written where any is bad.": "check",
    "Known sets are downloaded into data/downloads, what is for training alone.": "download root split",
    "Pixels are repeated.": "scaling",
    "The learning rates grow with the root of schedule.batch_factor.": "schedule.learning_rate_scaling",
    "With hours=, growth becomes shorter where it would be late.": "schedule.max_growth_share",
    "calibrate=true measures for two minutes at most.": "limit_seconds",
    "PyTorch's profiler, around Trainer.step, writes traces.": "debug=profile monitor.profile_steps trace",
    "TERM=dumb shows lines on a terminal, and metrics.jsonl has all numbers.": "monitor.console",
    "A larger checkpoint.keep= keeps more; the best one always stays.": "checkpoint.milestones",
    "A film of the training is enlarged to about 512 pixels.": "zoom",
    "calibrate=true measures, device= predicts a card.": "tflops watts",
    "One round warms up, or as many as the device needs.": "warmup",
}
WITHDRAWN = {name: remedy for remedy, names in REMEDIES.items() for name in names.split()}


def withdrawal(name: str) -> UserError | None:
    """The error for the key, or group=choice, `name` where it is one of WITHDRAWN."""
    return UserError(f"{name} is no longer there.", f"Leave it out: {WITHDRAWN[name]}") if name in WITHDRAWN else None
