/* Headers that every file of this folder includes. */
#include <torch/torch.h>
