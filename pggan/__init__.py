"""Progressive growing of GANs: train, sample and explore face generators from 4x4 to 1024x1024."""

from pggan.core.environment import __version__ as __version__
from pggan.core.environment import set_library_defaults
from pggan.interop import from_pretrained as from_pretrained
from pggan.interop import load as load

set_library_defaults()
