/* Owns what each step is given: the learning rate's course, and whose numbers the optimizer takes.
 */
#include "gpt2_schedule.h"

#include <math.h>

double gpt2_learning_rate(const gpt2_options *options, uint32_t step)
{
    if (step < options->warmup) {
        return options->lr * (step + 1) / options->warmup;
    }
    const uint32_t rest = options->steps - options->warmup;
    const double done = rest > 1 ? (double)(step - options->warmup) / (rest - 1) : 1;
    return options->min_lr + (options->lr - options->min_lr) * (1 + cos(M_PI * done)) / 2;
}

static zero_hyper hyper_of(const gpt2_options *o, float lr)
{
    const float beta1 = (float)o->beta1;
    const float beta2 = (float)o->beta2;
    const float decay = (float)o->weight_decay;
    zero_hyper hyper = zero_hyper_init(o->engine.optimizer);
    switch (o->engine.optimizer) {
    case ZERO_OPTIMIZER_DEFAULT:
    case ZERO_OPTIMIZER_ADAMW:
        hyper.adamw = (zero_adamw){lr, beta1, beta2, hyper.adamw.eps, decay};
        break;
    case ZERO_OPTIMIZER_LION:
        hyper.lion = (zero_lion){lr, beta1, beta2, decay};
        break;
    case ZERO_OPTIMIZER_SGD:
        hyper.sgd = (zero_sgd){lr, beta1, decay, 0};
        break;
    case ZERO_OPTIMIZER_LAMB:
        hyper.lamb.lr = lr;
        hyper.lamb.beta1 = beta1;
        hyper.lamb.beta2 = beta2;
        hyper.lamb.weight_decay = decay;
        hyper.lamb.adapt_undecayed = (float)o->adapt_undecayed;
        break;
    case ZERO_OPTIMIZER_LARS:
        hyper.lars.lr = lr;
        hyper.lars.momentum = beta1;
        hyper.lars.weight_decay = decay;
        hyper.lars.trust = (float)o->trust;
        hyper.lars.adapt_undecayed = (float)o->adapt_undecayed;
        break;
    case ZERO_OPTIMIZER_CALLBACK: /* the library has refused it */
        break;
    }
    return hyper;
}

zero_step_params gpt2_step_params(const gpt2_options *o, double lr)
{
    zero_step_params params = zero_step_params_init();
    params.hyper = hyper_of(o, (float)lr);
    params.max_norm = (float)o->clip;
    return params;
}
