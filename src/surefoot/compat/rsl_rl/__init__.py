"""The interface of RSL-RL 5.5.1, answered by Surefoot: `docs/migrating-from-rsl-rl.md`.

`install()` makes `import rsl_rl` lead here; `surefoot rsl-rl SCRIPT` does so for a script as it stands.
"""

from importlib.util import find_spec

from surefoot.compat.rsl_rl.install import VERSION, install
from surefoot.errors import ConfigError

if find_spec("tensordict") is None:
    raise ConfigError("the RSL-RL layer needs the tensordict package: pip install 'surefoot[rsl-rl]'.")

__version__ = VERSION
__all__ = ["__version__", "install"]
