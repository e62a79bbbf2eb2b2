from .elaboration import layer
from .composition import model
from .formula import *
