/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_REPORT_PAGE_H
#define FY_REPORT_PAGE_H

/* page.html as the build has put it into the library (cmake/page.cmake), with a zero behind it. */
extern const char fy_report_page[];

#endif
