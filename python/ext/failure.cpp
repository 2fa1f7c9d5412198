/* Statuses as exceptions of Python. */
#include "native.h"

static PyObject *classes[32];

void raise_error(zero_status status, const zero_error &error)
{
    const int number = status;
    PyObject *type = number > 0 && number < 32 ? classes[number] : nullptr;
    nb::object made =
        nb::borrow<nb::object>(type != nullptr ? type : PyExc_RuntimeError)(nb::str(error.message));
    made.attr("status") = nb::str(zero_status_name(status));
    made.attr("native") = error.native;
    made.attr("file") = nb::str(error.file != nullptr ? error.file : "");
    made.attr("line") = error.line;
    made.attr("of_other") = error.of_other;
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(made.ptr())), made.ptr());
    throw nb::python_error();
}

void check(zero_status status)
{
    if (status == ZERO_OK) {
        return;
    }
    const zero_error error = *zero_last_error();
    if (PyErr_CheckSignals() != 0) {
        throw nb::python_error();
    }
    raise_error(status, error);
}

static void set_class(int status, nb::object type)
{
    if (status < 1 || status >= 32) {
        throw nb::value_error("no status has this number");
    }
    Py_XDECREF(classes[status]);
    classes[status] = type.release().ptr();
}

void errors_register(nb::module_ &module)
{
    module.def("set_error_class", set_class, nb::arg("status"), nb::arg("type"));
    module.def("version", zero_version);
}
