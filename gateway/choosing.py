"""How workers are chosen, put together from the configuration."""

from gateway.config import Config
from gateway.policies.library import Library, worth_of


def library_of(config: Config) -> Library:
    """Raises ConfigError."""
    return Library(worth=worth_of(config.medium_worth), place=config.place, compositions=config.policies)
