"""Pieces that all experiments share; nothing here imports a particular experiment."""
