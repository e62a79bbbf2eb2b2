"""Converters of models: settings from a configuration, and the names of parameters."""
