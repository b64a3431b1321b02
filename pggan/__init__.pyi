from pggan.cli.main import train as train
from pggan.core.process import __version__ as __version__
from pggan.interop.export import from_pretrained as from_pretrained
from pggan.losses.base import Loss as Loss
from pggan.sampling.trained_generator import load as load
