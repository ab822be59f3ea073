"""Adapters (LoRA) that an operator has workers load and unload.

loading   on which workers, what each made of it, and their names anew    admin   /admin/adapters
command   `kvgate adapter`, which asks a running gateway there
"""
